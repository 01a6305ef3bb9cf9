"""mcugrad ports: serial ports of this machine."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from mcugrad.board import list_ports
from mcugrad.cli.common import Output, command


@click.command()
@command
def ports(output: Output) -> dict[str, Any]:
    """List the serial ports, likely boards first; use one with --board serial:PORT."""
    found = list_ports()
    for p in found:
        output.say(" · ".join(str(v) for v in asdict(p).values() if v not in ("", None, False)))
    if not found:
        output.say("no serial port found: plug the board in, or use an emulated one, see `mcugrad boards`")
    return {"ports": [asdict(p) for p in found]}
