"""mcugrad doctor: what is installed, what is missing, how to get it."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from mcugrad.board.renode import GET_RENODE
from mcugrad.cli.common import DEFAULT_BOARD, Output, command
from mcugrad.errors import UnavailableError


@dataclass(frozen=True, slots=True)
class Tool:
    """A program or a Python module. ``needed_for`` says what fails without it; ``required``: the default board needs it."""

    name: str
    needed_for: str
    get: str
    required: bool = False


PROGRAMS = (
    Tool("qemu-system-arm", "the qemu-… boards", "apt install qemu-system-arm", required=True),
    Tool("arm-none-eabi-gcc", "building firmware", "apt install gcc-arm-none-eabi libnewlib-arm-none-eabi", required=True),
    Tool("cmake", "building firmware", "apt install cmake", required=True),
    Tool("ninja", "building firmware", "apt install ninja-build", required=True),
    Tool("cc", "the host board", "apt install gcc libc6-dev"),
    Tool(
        "renode",
        "the renode-… boards",
        GET_RENODE,
    ),
    Tool(
        "renode-test",
        ".robot tests",
        "comes with Renode; pip install the tests/requirements.txt of its archive",
    ),
    Tool("pyocd", "flashing real boards", "pip install 'mcugrad[flash]'"),
    Tool("openocd", "flashing real boards", "apt install openocd"),
)

MODULES = (
    Tool("serial", "serial ports", "pip install pyserial", required=True),
    Tool("tflite_micro", "the oracle of the tests", "pip install mcugrad[test]"),
)


@click.command()
@command
def doctor(output: Output) -> dict[str, Any]:
    """Say which tools are there, which are missing, and how to get them. Exit code 69 where the default board cannot run."""
    rows = [(tool, shutil.which(tool.name), _version(tool.name)) for tool in PROGRAMS]
    rows += [(tool, "yes" if importlib.util.find_spec(tool.name) else None, "") for tool in MODULES]
    table = Table()
    for column in ("tool", "found", "needed for", "how to get it"):
        table.add_column(column, overflow="fold")
    for tool, found, version in rows:
        table.add_row(tool.name, (version or "yes") if found else Text("missing", "bold"), tool.needed_for, "" if found else tool.get)
    output.console.print(table)
    missing = [tool for tool, found, _ in rows if tool.required and not found]
    if missing:
        names = ", ".join(tool.name for tool in missing)
        raise UnavailableError(
            f"board {DEFAULT_BOARD} cannot run, missing: {names}", "; ".join(dict.fromkeys(tool.get for tool in missing))
        )
    output.say(f"board {DEFAULT_BOARD} can run")
    tools = [asdict(tool) | {"found": found, "version": version} for tool, found, version in rows]
    return {"python": sys.version.split()[0], "default_board": DEFAULT_BOARD, "tools": tools}


def _version(name: str) -> str:
    """First line of `name --version`; empty where there is none."""
    path = shutil.which(name)
    if path is None:
        return ""
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return (done.stdout or done.stderr).strip().splitlines()[0] if (done.stdout or done.stderr).strip() else ""
