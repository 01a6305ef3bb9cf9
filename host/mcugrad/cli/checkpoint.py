"""mcugrad checkpoint: what a board keeps in its checkpoint slots, and how worn they are."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from mcugrad.board import open_board
from mcugrad.cli.common import Output, command, group_digits, line_options
from mcugrad.link import Checkpoints, Session

RATED_ERASES = 10_000
"""What the flash of most microcontrollers is rated for."""


@click.command()
@line_options
@command
def checkpoint(output: Output, board: str) -> dict[str, Any]:
    """Show the checkpoints in the flash of a board.

    `mcugrad train --save-every N` writes them, `mcugrad train --restore` begins with the newest.
    """
    with open_board(board) as (opened, transport):
        session = Session(transport)
        caps = session.hello()
        found = session.checkpoints()
        session.bye()
    _show(output, opened.name, found, caps.plan_crc)
    return {"board": opened.name, "plan_crc": caps.plan_crc, **as_dict(found)}


def as_dict(found: Checkpoints) -> dict[str, Any]:
    """For --json. ``erases``: of each slot."""
    return {**asdict(found), "newest": found.newest.sequence if found.newest else None, "erases": found.erases}


def wear(found: Checkpoints, every: int) -> str:
    """How far the slots are worn, and what a checkpoint every so many samples makes of the rest."""
    left = max(RATED_ERASES - found.erases, 0)
    rest = group_digits(left * len(found.slots) * every)
    return (
        f"each slot was erased {group_digits(found.erases)} times; rated for {group_digits(RATED_ERASES)}, "
        f"it lasts {rest} more samples at --save-every {every}"
    )


def _show(output: Output, board: str, found: Checkpoints, plan_crc: int) -> None:
    if found.slot_bytes == 0:
        output.say(f"{board} keeps no checkpoints")
        return
    output.say(f"{board}: two slots of {group_digits(found.slot_bytes)} bytes, each erased {group_digits(found.erases)} times")
    for slot, kept in enumerate(found.slots):
        if kept is None:
            output.say(f"slot {slot}: no whole checkpoint")
            continue
        newest = ", the newest" if kept == found.newest else ""
        ours = ", of the plan on the board" if kept.plan_crc == plan_crc else ""
        output.say(
            f"slot {slot}: checkpoint {kept.sequence}{newest}: {group_digits(kept.state_bytes)} bytes of plan {kept.plan_crc:08x}, "
            f"model {kept.model_hash:08x}{ours}"
        )
    if found.restored:
        output.say(f"the board started with checkpoint {found.restored}")
