"""mcugrad boards: the boards that this version knows."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click
from rich.table import Table

from mcugrad.board import Board, load_boards
from mcugrad.board.probes import list_probes
from mcugrad.cli.common import Output, command, group_digits


@click.command()
@click.option("--detect", is_flag=True, help="Also list the debug probes that are plugged in.")
@command
def boards(output: Output, detect: bool) -> dict[str, Any]:
    """List the boards for --board; hardware is flashed (mcugrad flash) and then serial:PORT[:BAUD]."""
    found = load_boards()
    table = Table()
    table.add_column("board", no_wrap=True)
    table.add_column("RAM", justify="right")
    table.add_column("flash", justify="right")
    table.add_column("")
    for b in found.values():
        table.add_row(b.name, group_digits(b.ram_bytes), group_digits(b.flash_bytes), b.title)
    output.console.print(table)
    listed = {"boards": [_entry(b) for b in found.values()]}
    return listed | ({"probes": _probes(output)} if detect else {})


def _probes(output: Output) -> list[dict[str, Any]]:
    found = list_probes()
    for p in found:
        where = f" with {p.port}" if p.port else ""
        output.say(f"probe {p.id}: {p.name}{where}" + ("" if p.accessible else f", no permission to open {p.node}"))
    if not found:
        output.say("no debug probe is connected")
    return [asdict(p) | {"accessible": p.accessible} for p in found]


def _entry(b: Board) -> dict[str, Any]:
    sizes = {"ram_bytes": b.ram_bytes, "flash_bytes": b.flash_bytes}
    flash = {"flash": asdict(b.flasher)} if b.flasher else {}
    uart = {"uart": asdict(b.uart)} if b.uart else {}
    return {"name": b.name, "title": b.title, "core": b.core, "kind": b.kind.value} | sizes | flash | uart
