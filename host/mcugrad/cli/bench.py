"""mcugrad bench: what each step of a plan costs on a board."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

import click
import numpy as np
import numpy.typing as npt
from rich.table import Table

from mcugrad.board import open_board
from mcugrad.cli.common import (
    Output,
    command,
    demand_fit,
    group_digits,
    line_options,
    model_argument,
    request_options,
)
from mcugrad.errors import UnavailableError
from mcugrad.link import Region, Session
from mcugrad.nearest import Request, fit
from mcugrad.pipeline import Compiled


@dataclass(frozen=True, slots=True)
class StepCost:
    """One step: ``cost`` in the board's unit, stopwatch included, of a training step on a random sample."""

    step: str
    layer: str
    cost: int
    macs: int

    @property
    def per_mac(self) -> float | None:
        return self.cost / self.macs if self.macs else None


@click.command()
@model_argument
@line_options
@command
@request_options
def bench(output: Output, request: Request, board: str) -> dict[str, Any]:
    """Run one training step of MODEL on a board and show what each step costs: instructions where it is emulated, else cycles or time.

    With --batch also a commit. The stripes of a layer are one row of the table; --json has every step.
    """
    compiled = request.compile()
    with open_board(board) as (opened, transport):
        compiled, r = fit(request, compiled, opened)
        demand_fit(output, request, compiled, r)
        session = Session(transport)
        caps = opened.heard(session.hello())
        session.load_plan(compiled.plan)
        session.profile_on()
        _train_once(session, compiled)
        ticks = _step_ticks(session, compiled)
        if compiled.program.segments[-1]:
            session.commit()
            ticks += _step_ticks(session, compiled)
        session.bye()
    units = [caps.units(t) for t in ticks.tolist()]
    if any(u is None for u in units):
        raise UnavailableError(f"board {board} has no timer that moves", "use an emulated board")
    found = [
        StepCost(step.kind.name, step.label, unit, macs)
        for step, unit, macs in zip(compiled.program.steps, units, compiled.program.step_macs, strict=True)
        if unit
    ]
    unit = caps.tick_unit.name.lower()
    _show(output, found, f"{unit}{' (emulated)' if opened.emulated else ''}")
    return {
        "board": board,
        "unit": unit,
        "timing": "emulated" if opened.emulated else "measured",
        "total": sum(c.cost for c in found),
        "steps": [asdict(c) | {"per_mac": c.per_mac} for c in found],
    }


def _train_once(session: Session, compiled: Compiled) -> None:
    """One step on a random sample, whatever its loss."""
    rng = np.random.default_rng(1)
    sizes = [v.nbytes for v in (compiled.program.sample, compiled.program.target) if v is not None]
    session.sample(rng.integers(-128, 128, sum(sizes)).astype(np.int8))
    session.train(0, 0.001, 0.0)


def _step_ticks(session: Session, compiled: Compiled) -> npt.NDArray[np.uint32]:
    """Ticks of each step of the last run, 0 for those that did not run."""
    return np.frombuffer(session.read(Region.TRACE, 0, 4 * len(compiled.program.steps)), "<u4").astype(np.uint32)


_STRIPE = re.compile(r"\[\d+:\d+\]$| keeps \d+ rows$")
"""What the label of a stripe says behind the layer's name."""


def _by_layer(found: list[StepCost]) -> list[StepCost]:
    """The stripes of a layer in one row, where the first of them was."""
    rows: dict[tuple[str, str], list[StepCost]] = {}
    for c in found:
        rows.setdefault((c.step, _STRIPE.sub("", c.layer)), []).append(c)
    return [
        StepCost(step, layer if len(parts) == 1 else f"{layer} ({len(parts)}×)", sum(c.cost for c in parts), sum(c.macs for c in parts))
        for (step, layer), parts in rows.items()
    ]


def _show(output: Output, found: list[StepCost], unit: str) -> None:
    table = Table()
    for column in ("step", "layer", unit, "MACs", "per MAC"):
        table.add_column(column, justify="left" if column in ("step", "layer") else "right")
    for c in _by_layer(found):
        per_mac = "" if c.per_mac is None else f"{c.per_mac:.2f}"
        table.add_row(c.step, c.layer, group_digits(c.cost), group_digits(c.macs) if c.macs else "", per_mac)
    total, macs = sum(c.cost for c in found), sum(c.macs for c in found)
    table.add_section()
    table.add_row("all", "", group_digits(total), group_digits(macs), f"{total / macs:.2f}" if macs else "")
    output.console.print(table)
