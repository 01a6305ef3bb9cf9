"""mcugrad plan: compile a training plan and say what it costs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from mcugrad.board import Board, Kind, find_board, load_boards
from mcugrad.cli.common import (
    Output,
    board_option,
    command,
    demand_fit,
    group_digits,
    model_argument,
    request_options,
)
from mcugrad.errors import UsageError
from mcugrad.memory.picture import LETTERS, Picture, page, picture, svg, text_lines
from mcugrad.memory.prove import Proof, prove
from mcugrad.nearest import Request, fit
from mcugrad.pipeline import Compiled
from mcugrad.report import PlanReport, estimate
from mcugrad.training.checkpoint import write_atomic

TERMINAL = Path("-")
ALL_BOARDS = "all"


@click.command()
@model_argument
@board_option
@click.option("--picture", "drawing", type=click.Path(path_type=Path), help="Draw the arena over time: FILE.svg, FILE.html, or - here.")
@click.option("--check", is_flag=True, help="Prove the plan's addresses again, from its bytes.")
@click.option("--estimate", "only_estimate", is_flag=True, help="Only say what fits --board (or all), without building its firmware.")
@click.option("--out", type=click.Path(path_type=Path), help="Write the plan's bytes here.")
@command
@request_options
def plan(
    output: Output,
    request: Request,
    board: str,
    drawing: Path | None,
    check: bool,
    only_estimate: bool,
    out: Path | None,
) -> dict[str, Any]:
    """Compile a training plan for MODEL and show its memory, flash and work on a board.

    A plan that does not fit ends with exit code 8 and the nearest scheme that does; --estimate only answers.
    """
    _require_drawing(output, drawing)
    if only_estimate:
        return _estimate(output, request.compile(), _boards(board), request.sram)
    compiled, r = fit(request, request.compile(), find_board(board))
    show_report(output, r)
    if drawing is not None:
        _draw(output, picture(compiled.program, compiled.layout, compiled.lowered), drawing)
    proof = prove(compiled.program, compiled.plan) if check else None
    if proof is not None:
        _show_proof(output, proof)
    demand_fit(output, request, compiled, r)
    if out is not None:
        write_atomic(out, compiled.plan)
        output.say(f"plan: {out}")
    files = {"plan": str(out) if out else None, "picture": str(drawing) if drawing else None}
    return r.as_dict() | {"proof": asdict(proof) if proof else None} | files


def _short(name: str) -> str:
    """The ends of a long tensor name: converters join the names of all that they fused."""
    return name if len(name) <= 40 else f"{name[:18]}…{name[-20:]}"


def show_report(out: Output, r: PlanReport) -> None:
    """Print memory and work as a table, and what sets the peak."""
    out.say(f"trains {r.scheme}")
    table = Table(title=f"training plan for {r.board}")
    table.add_column("what")
    table.add_column("bytes", justify="right")
    table.add_column("")
    bound = f"{group_digits(r.arena_lower_bound)}, {100 * (r.arena_ratio - 1):.1f} % above it" if r.arena_lower_bound else "0"
    table.add_row("arena", group_digits(r.ram.arena), f"lower bound {bound}")
    table.add_row("state", group_digits(r.ram.state), f"{group_digits(r.trained_weights)} weights, {group_digits(r.trained_biases)} biases")
    table.add_row("io", group_digits(r.ram.io), "label, result, output")
    table.add_row("stack", group_digits(r.ram.stack), "reserved")
    table.add_row("runtime", group_digits(r.ram.runtime), "the trainer's variables and link buffers")
    table.add_row("RAM in all", group_digits(r.ram.total), f"of {group_digits(r.ram_limit)}")
    table.add_section()
    table.add_row("plan", group_digits(r.flash.plan), f"{r.steps} steps and the initial state")
    table.add_row("const", group_digits(r.flash.const), "frozen weights, multipliers")
    table.add_row("firmware", group_digits(r.flash.firmware), "")
    table.add_row("flash in all", group_digits(r.flash.total), f"of {group_digits(r.flash_limit)}")
    out.console.print(table)
    held = ", ".join(f"{_short(h.name)} {group_digits(h.bytes)}" for h in r.peak.held[:PEAK_SHOWN])
    out.say(f"peak of the arena at step {r.peak.step} of {r.steps}, {r.peak.segment} {r.peak.name}: {held}")
    saved = r.saved
    whole, slices, masks = (group_digits(n) for n in (saved.whole, saved.slices, saved.masks))
    out.say(f"kept for backward: whole tensors {whole} bytes, slices {slices}, masks {masks}")
    for s in r.stripes:
        rows, maps, again = (group_digits(n) for n in (s.kept_bytes, s.whole_bytes, s.again_macs))
        height = f"{s.rows} rows" if s.rows > 1 else "1 row"
        out.say(f"in stripes of {height}: {', '.join(s.layers)}; {rows} bytes of rows for {maps} of maps, {again} MACs made twice")
    for f in r.fused:
        scratch, maps = group_digits(f.scratch_bytes), group_digits(f.whole_bytes)
        out.say(f"in one step: {', '.join(f.layers)}; {scratch} bytes of scratch for {maps} of maps")
    if r.recomputed:
        out.say(f"made again by the backward pass: {', '.join(r.recomputed)}")
    twice = f", {group_digits(r.macs_again)} of them made twice to save memory" if r.macs_again else ""
    out.say(f"MACs a step: forward {group_digits(r.macs['forward'])}, backward {group_digits(r.macs['backward'])}{twice}")
    out.say(f"memory for mg_init: MCUGRAD_MEMORY_BYTES {r.constants['MCUGRAD_MEMORY_BYTES']}, in the plan.h of `mcugrad build`")
    for note in r.notes:
        out.say(f"note: {note}")


PEAK_SHOWN = 3
"""Values that are named with the peak."""


# ---- the picture ------------------------------------------------------------------------------------------------------

WIDEST = 110


def _require_drawing(output: Output, drawing: Path | None) -> None:
    """Raise UsageError for a picture that is neither of the files nor the terminal."""
    if drawing == TERMINAL and output.as_json:
        raise UsageError("--picture - draws for people, --json prints one object", "--picture FILE.svg")
    if drawing is not None and drawing != TERMINAL and drawing.suffix not in (".svg", ".html"):
        raise UsageError(f"--picture {drawing}: a picture is a .svg or .html file, or - for the terminal", f"--picture {drawing}.svg")


def _draw(output: Output, found: Picture, drawing: Path) -> None:
    if drawing != TERMINAL:
        write_atomic(drawing, (page if drawing.suffix == ".html" else svg)(found).encode())
        output.say(f"picture: {drawing}")
        return
    for line in text_lines(found, min(output.console.width, WIDEST)):
        output.console.print(_colored(line), soft_wrap=True)


COLORS = ("blue", "green", "magenta", "cyan", "yellow", "red")


def _colored(line: str) -> Text:
    """The letters of the drawing in colors, where the terminal has them."""
    left, bar, grid = line.partition("|")
    text = Text(left + bar)
    if not line.endswith("|"):
        return text + Text(grid)
    for letter in grid:
        place = LETTERS.find(letter)
        text.append(letter, style=f"white on {COLORS[place % len(COLORS)]}" if place >= 0 else "")
    return text


def _show_proof(output: Output, proof: Proof) -> None:
    output.say(
        f"addresses proven from the plan's bytes: {proof.steps} steps, {group_digits(proof.references)} references, "
        f"{proof.over} outputs over an input that dies"
    )


# ---- without firmware -------------------------------------------------------------------------------------------------


def _boards(board: str) -> list[Board]:
    """A board in Renode has the sizes of the one whose image it runs: the list of all does without."""
    return [b for b in load_boards().values() if b.kind is not Kind.RENODE] if board == ALL_BOARDS else [find_board(board)]


def _estimate(output: Output, compiled: Compiled, boards: list[Board], sram: int | None) -> dict[str, Any]:
    """Say for each board whether the plan fits."""
    found = [estimate(compiled, board, sram) for board in boards]
    table = Table(title="estimates, without firmware")
    for column in ("board", "RAM", "of", "flash", "of", ""):
        table.add_column(column, justify="left" if column in ("board", "") else "right", no_wrap=True)
    for e in found:
        sizes = (group_digits(n) for n in (e.ram, e.ram_limit, e.flash, e.flash_limit))
        table.add_row(e.board, *sizes, "fits" if e.fits else "does not fit")
    output.console.print(table)
    return {"scheme": compiled.train.scheme.describe(compiled.train.graph), "estimates": [asdict(e) for e in found]}
