"""mcugrad build: the firmware of a board, and a plan as files."""

from __future__ import annotations

import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from mcugrad.board import find_board
from mcugrad.board.build import RegionUse
from mcugrad.cli.common import (
    Output,
    batch_option,
    board_option,
    channels_option,
    classes_option,
    command,
    demand_fit,
    group_digits,
    loss_option,
    recompute_option,
    request_of,
    rounding_option,
    scheme_option,
    sram_option,
)
from mcugrad.nearest import fit
from mcugrad.plan.c_array import c_array
from mcugrad.training.checkpoint import write_atomic


@click.command()
@click.argument("model", required=False, type=click.Path(path_type=Path))
@board_option
@sram_option
@recompute_option
@scheme_option
@channels_option
@classes_option
@rounding_option
@batch_option
@loss_option
@click.option("--out", type=click.Path(path_type=Path), default=Path("mcugrad-build"), show_default=True, help="Folder for the files.")
@command
def build(
    output: Output,
    model: Path | None,
    board: str,
    sram: int | None,
    recompute: bool,
    scheme: str,
    channels: str,
    classes: int | None,
    rounding: str,
    batch: int,
    loss: str,
    out: Path,
) -> dict[str, Any]:
    """Build the trainer firmware of a board; with MODEL also its plan: plan.bin, and plan.h for an application of your own."""
    target = find_board(board)
    image = target.build()
    out.mkdir(parents=True, exist_ok=True)
    elf = out / image.elf.name
    shutil.copyfile(image.elf, elf)
    output.say(f"{elf}: flash {group_digits(image.flash_bytes)} bytes, static RAM {group_digits(image.static_ram_bytes)} bytes")
    regions = [*image.regions]
    files = {"firmware": str(elf)}
    if model is not None:
        request = request_of(model, scheme, channels, classes, rounding, batch, loss, recompute=recompute)
        compiled, r = fit(request, request.compile(), target, sram)
        demand_fit(output, request, compiled, r)
        write_atomic(out / "plan.bin", compiled.plan)
        write_atomic(out / "plan.h", c_array(compiled.plan).encode())
        files |= {"plan": str(out / "plan.bin"), "header": str(out / "plan.h")}
        output.say(f"{out / 'plan.bin'}, {out / 'plan.h'}: {group_digits(len(compiled.plan))} bytes")
        regions.append(RegionUse("SLOT", len(compiled.plan), target.slot_bytes))
    for use in regions:
        output.say(f"{use.name}: {group_digits(use.used_bytes)} of {group_digits(use.total_bytes)} bytes, {use.percent} %")
    sizes = {"flash_bytes": image.flash_bytes, "static_ram_bytes": image.static_ram_bytes}
    return {"board": board, "files": files, **sizes, "regions": [asdict(use) | {"percent": use.percent} for use in regions]}
