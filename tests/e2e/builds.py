"""Firmware built with other options than those of the command line."""

from __future__ import annotations

import fcntl
import subprocess
from pathlib import Path

from mcugrad.board import Firmware
from mcugrad.paths import root


def cmake_build(folder: Path, target: str, *options: str) -> None:
    """Configure (the first time) and build; what CMake says is shown where it fails."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "build.ninja").exists():
            _run("cmake", "-S", str(root()), "-B", str(folder), "-G", "Ninja", *options)
        _run("cmake", "--build", str(folder), "--target", target)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def firmware_in(name: str, board: str, *options: str) -> Firmware:
    """The trainer of ``board`` in build/``name``, with more CMake options. Its sizes are not measured."""
    folder = root() / "build" / name
    native = board == "host"
    cross = () if native else (f"-DCMAKE_TOOLCHAIN_FILE={root() / 'cmake' / 'arm-none-eabi.cmake'}",)
    cmake_build(folder, "trainer", f"-DMG_BOARD={board}", *cross, *options)
    return Firmware(folder / ("trainer" if native else "trainer.elf"), 0, 0)
