"""Firmware built by CMake into build/<board>, and what its linker says in one line."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from mcugrad import __version__
from mcugrad.errors import FitError, McugradError, UnavailableError
from mcugrad.paths import root
from mcugrad.plan.sign import key_file

_PACKAGES = {
    "cmake": "cmake",
    "ninja": "ninja-build",
    "cc": "gcc",
    "arm-none-eabi-gcc": "gcc-arm-none-eabi libnewlib-arm-none-eabi",
    "arm-none-eabi-size": "binutils-arm-none-eabi",
    "arm-none-eabi-objcopy": "binutils-arm-none-eabi",
    "arm-none-eabi-objdump": "binutils-arm-none-eabi",
    "size": "binutils",
}
"""Tool -> Debian packages."""

_TOP_SYMBOLS = 5

PLAN_SYMBOL = "mcugrad_plan"
"""The array of plan.h."""


@dataclass(frozen=True, slots=True)
class RegionUse:
    """Bytes of one memory region of the link script: what the image puts there, the stack that it reserves included, of what it has."""

    name: str
    used_bytes: int
    total_bytes: int

    @property
    def percent(self) -> float:
        return round(100 * self.used_bytes / self.total_bytes, 1)


@dataclass(frozen=True, slots=True)
class Firmware:
    """A built image. ``flash_bytes`` is code, constants and initial values; ``static_ram_bytes`` is .data and .bss.

    ``regions``: as the link script names them; none for a native process.
    """

    elf: Path
    flash_bytes: int
    static_ram_bytes: int
    regions: tuple[RegionUse, ...] = ()


def build(board: str, app: str, native: bool) -> Firmware:
    """Configure (where needed) and build ``app`` for ``board``; quiet unless it fails. Called by Board.build."""
    compiler = "cc" if native else "arm-none-eabi-gcc"
    size = "size" if native else "arm-none-eabi-size"
    for tool in ("cmake", "ninja", compiler, size):
        need_tool(tool)
    key = key_file()
    folder = _build_dir(board if key is None else f"{board}-keyed")
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _configured(folder, board, key):
            _run(_configure(board, folder, native, key), board)
        _run(["cmake", "--build", str(folder), "--target", app], board)
    elf = folder / (app if native else f"{app}.elf")
    flash, ram = _sizes(size, elf, reserved=_reserved(elf))
    return Firmware(elf, flash, ram, () if native else _regions(elf))


def image_bytes(firmware: Firmware) -> bytes:
    """What a firmware puts into flash, from its first byte on."""
    need_tool("arm-none-eabi-objcopy")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "image.bin"
        subprocess.run(["arm-none-eabi-objcopy", "-O", "binary", str(firmware.elf), str(out)], check=True)
        return out.read_bytes()


def _configured(folder: Path, board: str, key: Path | None) -> bool:
    """Whether ``folder`` is set up for ``board`` and ``key``; build/host may have been set up for the shared library alone."""
    if not (folder / "build.ninja").exists():
        return False
    cache = (folder / "CMakeCache.txt").read_text(encoding="utf-8")
    return f"MG_BOARD:STRING={board}\n" in cache and (key is None or f"MG_PLAN_KEY_FILE:FILEPATH={key}\n" in cache)


def need_tool(tool: str) -> None:
    """Raise UnavailableError with the package to install where ``tool`` is not on PATH."""
    if shutil.which(tool) is None:
        raise UnavailableError(f"{tool} is not on PATH", f"install it: apt install {_PACKAGES.get(tool, tool)}")


def _build_dir(board: str) -> Path:
    checkout = root()
    if (checkout / "pyproject.toml").exists() and os.access(checkout, os.W_OK):
        folder = checkout / "build" / board
    else:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        folder = cache / "mcugrad" / __version__ / board
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _configure(board: str, folder: Path, native: bool, key: Path | None) -> list[str]:
    command = [
        "cmake",
        "-S",
        str(root()),
        "-B",
        str(folder),
        "-G",
        "Ninja",
        f"-DMG_BOARD={board}",
        f"-DPython3_EXECUTABLE={sys.executable}",
        f"-DMG_PLAN_KEY_FILE={key or ''}",
    ]
    return command if native else [*command, f"-DCMAKE_TOOLCHAIN_FILE={root() / 'cmake' / 'arm-none-eabi.cmake'}"]


def _run(command: list[str], board: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise build_error(done.stdout + done.stderr, board)


def build_error(output: str, board: str) -> McugradError:
    """One line out of what CMake, the compiler or the linker printed. A memory region that overflows is a FitError."""
    overflows = re.findall(r"region [`'\"]?(\w+)'? overflowed by (\d+) bytes", output)
    if overflows:
        regions = ", ".join(f"{region} overflows by {int(n):,} bytes" for region, n in dict(overflows).items())
        return FitError(f"the firmware does not fit {board}: {regions}", _what_is_large(output))
    lines = [line.strip() for line in output.splitlines() if re.search(r"\berror:|undefined reference|CMake Error", line)]
    first = lines[0] if lines else (output.strip().splitlines() or ["no output"])[-1]
    return McugradError(f"building the firmware for {board} failed: {first}", "build by hand to see all: cmake --build build/" + board)


def _what_is_large(output: str) -> str:
    """The plan, where one is linked in, and the largest symbols, by the map that the failed link has left; what to do about them."""
    found = re.search(r"-Map=(\S+\.map)", output)
    path = Path(found[1]) if found else None
    if path is None or not path.exists():
        return "build fewer kernels"
    sizes = re.findall(r"^ \.(?:text|rodata|bss|data)\.(\S+)\s+0x[0-9a-f]+\s+0x([0-9a-f]+)", path.read_text(errors="replace"), re.M)
    symbols = sorted(((int(n, 16), name) for name, n in sizes), reverse=True)
    plan = sum(n for n, name in symbols if name == PLAN_SYMBOL)
    top = ", ".join(f"{name} {n:,}" for n, name in symbols[:_TOP_SYMBOLS])
    if plan:
        return f"the plan has {plan:,} bytes; largest symbols: {top}; pick a smaller model or scheme, or another board"
    return f"largest symbols: {top}; build fewer kernels"


def _regions(elf: Path) -> tuple[RegionUse, ...]:
    """What fills each region: its limits from the linker's map, the sections from the image; .data takes flash and RAM."""
    memory = elf.with_suffix(".map").read_text(errors="replace").partition("Linker script and memory map")[0]
    limits = re.findall(r"^(\w+)\s+0x([0-9a-f]+)\s+0x([0-9a-f]+)\s+\w+$", memory, re.M)
    listing = subprocess.run(["arm-none-eabi-objdump", "-h", str(elf)], capture_output=True, text=True, check=True).stdout
    section = re.compile(r"^\s*\d+ \S+\s+([0-9a-f]{8})\s+([0-9a-f]{8})\s+([0-9a-f]{8}) .*\n\s+(.*ALLOC.*)$", re.M)
    pieces: list[tuple[int, int]] = []
    for size, run_at, load_at, flags in section.findall(listing):
        places = {int(run_at, 16), int(load_at, 16)} if re.search(r"\bLOAD\b", flags) else {int(run_at, 16)}
        pieces += [(place, int(size, 16)) for place in places]
    found = []
    for name, origin, length in limits:
        first, total = int(origin, 16), int(length, 16)
        used = sum(size for place, size in pieces if first <= place < first + total)
        found.append(RegionUse(name, used, total))
    return tuple(found)


def _reserved(elf: Path) -> int:
    """Bytes of .stack in the image, which `size` counts as bss."""
    if elf.suffix != ".elf":
        return 0
    listing = subprocess.run(["arm-none-eabi-size", "-A", str(elf)], capture_output=True, text=True, check=True).stdout
    found = re.search(r"^\.stack\s+(\d+)", listing, re.M)
    return int(found[1]) if found else 0


def _sizes(size: str, elf: Path, reserved: int) -> tuple[int, int]:
    listing = subprocess.run([size, str(elf)], capture_output=True, text=True, check=True).stdout
    text, data, bss = (int(v) for v in listing.splitlines()[1].split()[:3])
    return text + data, data + bss - reserved
