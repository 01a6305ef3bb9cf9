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
    board_option,
    command,
    demand_fit,
    group_digits,
    request_options,
)
from mcugrad.nearest import Request, fit
from mcugrad.plan.c_array import c_array
from mcugrad.training.checkpoint import write_atomic


@click.command()
@click.argument("model", required=False, type=click.Path(path_type=Path))
@board_option
@click.option("--out", type=click.Path(path_type=Path), default=Path("mcugrad-build"), show_default=True, help="Folder for the files.")
@command
@request_options
def build(
    output: Output,
    request: Request | None,
    board: str,
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
    if request is not None:
        compiled, r = fit(request, request.compile(), target)
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
