"""mcugrad boards: the boards that this version knows."""

from __future__ import annotations

from typing import Any

import click
from rich.table import Table

from mcugrad.board import Board, load_boards
from mcugrad.cli.common import Output, command, group_digits


@click.command()
@command
def boards(output: Output) -> dict[str, Any]:
    """List the boards for --board; real hardware is serial:PORT[:BAUD]."""
    found = load_boards()
    table = Table()
    table.add_column("board", no_wrap=True)
    table.add_column("RAM", justify="right")
    table.add_column("flash", justify="right")
    table.add_column("")
    for b in found.values():
        table.add_row(b.name, group_digits(b.ram_bytes), group_digits(b.flash_bytes), b.title)
    output.console.print(table)
    return {"boards": [_entry(b) for b in found.values()]}


def _entry(b: Board) -> dict[str, Any]:
    sizes = {"ram_bytes": b.ram_bytes, "flash_bytes": b.flash_bytes}
    return {"name": b.name, "title": b.title, "core": b.core, "kind": b.kind.value} | sizes
