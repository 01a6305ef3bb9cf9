"""mcugrad flash: the trainer firmware onto a real board."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from mcugrad.board import find_board
from mcugrad.board.flash import AUTO, BACKENDS, Flashed
from mcugrad.board.flash import flash as flash_board
from mcugrad.cli.common import Output, command, group_digits


@click.command()
@click.option("--board", required=True, help="A board of kind hardware, see mcugrad boards.")
@click.option("--probe", metavar="ID", help="The debug probe, by its ID or a part of it, where several are connected.")
@click.option(
    "--backend", type=click.Choice([AUTO, *BACKENDS]), default=AUTO, show_default=True, help="The tool; auto: the first that is installed."
)
@command
def flash(output: Output, board: str, probe: str | None, backend: str) -> dict[str, Any]:
    """Build the trainer for a real board, write it into its flash, and compare what is read back."""
    target = find_board(board)
    done = flash_board(target, backend, probe, output.say)
    output.say(f"{board}: {group_digits(done.size)} bytes written, read back and equal{_how(done)}")
    port = done.probe.port or "PORT"
    output.say(f"next: mcugrad train … --board serial:{port}   ({target.uart.wiring if target.uart else ''})")
    return {"board": board, "backend": done.backend, "probe": asdict(done.probe), "bytes": done.size, "under_reset": done.under_reset}


def _how(done: Flashed) -> str:
    return " (connected under reset)" if done.under_reset else ""
