"""mcugrad plan: compile a training plan and say what it costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.table import Table

from mcugrad.board import find_board
from mcugrad.cli.common import (
    Output,
    batch_option,
    board_option,
    channels_option,
    classes_option,
    command,
    group_digits,
    loss_of,
    loss_option,
    model_argument,
    rounding_option,
    scheme_option,
    weight_bytes,
)
from mcugrad.graph.permute import Channels
from mcugrad.lower import Options
from mcugrad.pipeline import compile_model
from mcugrad.report import PlanReport, report, require_fit
from mcugrad.training.checkpoint import write_atomic


@click.command()
@model_argument
@board_option
@scheme_option
@channels_option
@classes_option
@rounding_option
@batch_option
@loss_option
@click.option("--out", type=click.Path(path_type=Path), help="Write the plan's bytes here.")
@command
def plan(
    output: Output,
    model: Path,
    board: str,
    scheme: str,
    channels: str,
    classes: int | None,
    rounding: str,
    batch: int,
    loss: str,
    out: Path | None,
) -> dict[str, Any]:
    """Compile a training plan for MODEL and show its memory, flash and work on a board."""
    compiled = compile_model(model, scheme, classes, Options(ws=weight_bytes(rounding), batch=batch), loss_of(loss), Channels(channels))
    r = report(compiled, find_board(board))
    show_report(output, r)
    require_fit(r)
    if out is not None:
        write_atomic(out, compiled.plan)
        output.say(f"plan: {out}")
    return r.as_dict() | {"plan": str(out) if out else None}


def show_report(out: Output, r: PlanReport) -> None:
    """Print memory and work as a table."""
    out.say(f"trains {r.scheme}")
    table = Table(title=f"training plan for {r.board}")
    table.add_column("what")
    table.add_column("bytes", justify="right")
    table.add_column("")
    table.add_row("arena", group_digits(r.ram.arena), f"lower bound {group_digits(r.arena_lower_bound)}, peak at {r.peak_step}")
    table.add_row("state", group_digits(r.ram.state), f"{group_digits(r.trained_weights)} weights, {group_digits(r.trained_biases)} biases")
    table.add_row("io", group_digits(r.ram.io), "sample, label, result, output")
    table.add_row("stack", group_digits(r.ram.stack), "reserved")
    table.add_row("runtime", group_digits(r.ram.runtime), "the trainer's variables and link buffers")
    table.add_row("RAM in all", group_digits(r.ram.total), f"of {group_digits(r.ram_limit)}")
    table.add_section()
    table.add_row("plan", group_digits(r.flash.plan), f"{r.steps} steps and the initial state")
    table.add_row("const", group_digits(r.flash.const), "frozen weights, multipliers")
    table.add_row("firmware", group_digits(r.flash.firmware), "")
    table.add_row("flash in all", group_digits(r.flash.total), f"of {group_digits(r.flash_limit)}")
    out.console.print(table)
    out.say(f"MACs a step: forward {group_digits(r.macs['forward'])}, backward {group_digits(r.macs['backward'])}")
    for note in r.notes:
        out.say(f"note: {note}")
