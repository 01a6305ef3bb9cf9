"""boards/<name>/board.toml read and checked."""

from __future__ import annotations

import difflib
import functools
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from mcugrad.board.build import Firmware, build
from mcugrad.errors import McugradError, UsageError
from mcugrad.link.protocol import Caps, TickUnit
from mcugrad.paths import boards_dir


class Kind(Enum):
    """How a board runs. ``HARDWARE`` is flashed and then met as ``SERIAL``, whatever hangs on a port."""

    HOST = "host"
    QEMU = "qemu"
    RENODE = "renode"
    HARDWARE = "hardware"
    SERIAL = "serial"


@dataclass(frozen=True, slots=True)
class Flasher:
    """What writes a board's flash needs: where it starts, the target's name in pyOCD, the configuration files (*.cfg) and
    commands of OpenOCD in their order.

    ``pyocd_pack``: pyOCD knows the target from a CMSIS pack only, which is installed once.
    """

    base: int
    pyocd: str
    pyocd_pack: bool
    openocd: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Uart:
    """The serial line of a real board: the rate at which it starts, and where it comes out."""

    baud: int
    wiring: str


@dataclass(frozen=True, slots=True)
class Board:
    """One folder of boards/. Sizes in bytes; ``tick_mul / tick_div`` is ``tick_unit`` per tick.

    A board in Renode runs the very image of another board, ``image``, and has its core, sizes and ticks. ``renode_version`` is the oldest
    Renode that has what the board needs.
    """

    name: str
    title: str
    core: str
    kind: Kind
    ram_bytes: int
    flash_bytes: int
    firmware_bytes: int
    stack_bytes: int
    rx_ring_bytes: int
    tick_unit: TickUnit
    tick_mul: int
    tick_div: int
    checkpoint_bytes: int = 0
    """Flash for one checkpoint, beside ``flash_bytes``; there are two such slots, or none where it is 0."""
    qemu_machine: str = ""
    qemu_args: tuple[str, ...] = ()
    image: str = ""
    renode_uart: str = ""
    renode_version: tuple[int, ...] = ()
    flasher: Flasher | None = None
    uart: Uart | None = None

    @property
    def slot_bytes(self) -> int:
        """Flash for a plan."""
        return self.flash_bytes - self.firmware_bytes

    @property
    def emulated(self) -> bool:
        """Whether its timing says nothing about hardware."""
        return self.kind not in (Kind.SERIAL, Kind.HARDWARE)

    def build(self, app: str = "trainer") -> Firmware:
        """Build an application for this board. Raises UnavailableError (a tool is missing), FitError (it does not link), McugradError."""
        return build(self.image or self.name, app, native=self.kind is Kind.HOST)

    def unit(self, reported: TickUnit) -> TickUnit:
        """What the firmware's ticks are here: where it counts cycles, an emulator counts instructions."""
        return TickUnit.INSTRUCTIONS if self.emulated and reported is TickUnit.CYCLES else reported

    def heard(self, caps: Caps) -> Caps:
        """What the firmware says of itself, its ticks named as what they are here."""
        return replace(caps, tick_unit=self.unit(caps.tick_unit))


STORE_ALIGN = 32
"""The size of a checkpoint slot is a multiple of this, MG_STORE_ALIGN_BYTES of mcugrad.h."""

_T = TypeVar("_T")
_SIZES = ("ram_bytes", "flash_bytes", "firmware_bytes", "stack_bytes", "rx_ring_bytes")
_KEYS = {"name", "title", "core", "kind", "tick", "qemu", "renode", "flash", "uart", "checkpoint_bytes", *_SIZES}


def parse_board(path: Path) -> Board:
    """Read one board.toml. Raises McugradError with the file, the key and what it must be."""
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as e:
        raise McugradError(f"{path}: {e}") from None
    unknown = set(raw) - _KEYS
    if unknown:
        raise _bad(path, sorted(unknown)[0], "not a key of board.toml")
    if raw.get("kind") == Kind.RENODE.value:
        return _renode_board(path, raw)
    sizes = {key: _positive(path, raw, key) for key in _SIZES}
    if sizes["firmware_bytes"] >= sizes["flash_bytes"]:
        raise _bad(path, "firmware_bytes", f"less than flash_bytes ({sizes['flash_bytes']})")
    if sizes["stack_bytes"] + sizes["rx_ring_bytes"] >= sizes["ram_bytes"]:
        raise _bad(path, "stack_bytes", f"with rx_ring_bytes less than ram_bytes ({sizes['ram_bytes']})")
    name = _name(path, raw)
    kind = _choice(path, raw, "kind", {k.value: k for k in Kind})
    tick = _table(path, raw, "tick")
    qemu = _table(path, raw, "qemu") if kind is Kind.QEMU else {}
    return Board(
        name=name,
        title=_text(path, raw, "title"),
        core=_text(path, raw, "core"),
        kind=kind,
        ram_bytes=sizes["ram_bytes"],
        flash_bytes=sizes["flash_bytes"],
        firmware_bytes=sizes["firmware_bytes"],
        stack_bytes=sizes["stack_bytes"],
        rx_ring_bytes=sizes["rx_ring_bytes"],
        tick_unit=_choice(path, tick, "unit", {u.name.lower(): u for u in TickUnit}),
        tick_mul=_positive(path, tick, "mul"),
        tick_div=_positive(path, tick, "div"),
        checkpoint_bytes=_checkpoint_bytes(path, raw),
        qemu_machine=_text(path, qemu, "machine") if qemu else "",
        qemu_args=tuple(str(a) for a in qemu.get("args", ())),
        flasher=_flasher(path, _table(path, raw, "flash")) if kind is Kind.HARDWARE else None,
        uart=_uart(path, _table(path, raw, "uart")) if kind is Kind.HARDWARE else None,
    )


def _flasher(path: Path, raw: Mapping[str, Any]) -> Flasher:
    files = raw.get("openocd")
    if not isinstance(files, list) or not files or not all(isinstance(file, str) for file in files):
        raise _bad(path, "openocd", "a list of configuration files and commands")
    base, pack = raw.get("base"), raw.get("pyocd_pack", False)
    if not isinstance(base, int) or isinstance(base, bool) or base < 0:
        raise _bad(path, "base", "an address")
    if not isinstance(pack, bool):
        raise _bad(path, "pyocd_pack", "true or false")
    return Flasher(base, _text(path, raw, "pyocd"), pack, tuple(files))


def _uart(path: Path, raw: Mapping[str, Any]) -> Uart:
    return Uart(_positive(path, raw, "baud"), _text(path, raw, "wiring"))


def _renode_board(path: Path, raw: Mapping[str, Any]) -> Board:
    renode = _table(path, raw, "renode")
    image = _text(path, renode, "image")
    file = path.parent.parent / image / "board.toml"
    if image == path.parent.name or not file.exists():
        raise _bad(path, "image", "the name of another folder of boards/")
    version = _text(path, renode, "version")
    if not re.fullmatch(r"\d+(\.\d+)+", version):
        raise _bad(path, "version", "a version such as 1.16.1")
    board = replace(
        parse_board(file),
        name=_name(path, raw),
        title=_text(path, raw, "title"),
        kind=Kind.RENODE,
        qemu_machine="",
        qemu_args=(),
        flasher=None,
        uart=None,
        image=image,
        renode_uart=_text(path, renode, "uart"),
        renode_version=tuple(int(n) for n in version.split(".")),
    )
    return replace(board, tick_unit=board.unit(board.tick_unit))


@functools.cache
def load_boards() -> Mapping[str, Board]:
    """All boards by name, in the order of their names."""
    paths = sorted(boards_dir().glob("*/board.toml"))
    return MappingProxyType({p.parent.name: parse_board(p) for p in paths})


def find_board(name: str) -> Board:
    """The board ``name``. Raises UsageError with the nearest name and the list."""
    boards = load_boards()
    if name in boards:
        return boards[name]
    near = difflib.get_close_matches(name, boards, 1)
    hint = (f"did you mean {near[0]}? " if near else "") + f"boards: {', '.join(boards)}, or serial:PORT for hardware"
    raise UsageError(f"there is no board {name!r}", hint)


def _bad(path: Path, key: str, must: str) -> McugradError:
    return McugradError(f"{path}: {key} must be {must}" if must[:3] != "not" else f"{path}: {key} is {must}")


def _name(path: Path, raw: Mapping[str, Any]) -> str:
    if _text(path, raw, "name") != path.parent.name:
        raise _bad(path, "name", f"the name of its folder, {path.parent.name}")
    return path.parent.name


def _table(path: Path, raw: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = raw.get(key)
    if not isinstance(value, dict):
        raise _bad(path, key, "a table")
    return value


def _text(path: Path, raw: Mapping[str, Any], key: str) -> str:
    value = raw.get(key)
    if not isinstance(value, str) or not value:
        raise _bad(path, key, "a text")
    return value


def _positive(path: Path, raw: Mapping[str, Any], key: str) -> int:
    value = raw.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise _bad(path, key, "an integer above 0")
    return value


def _checkpoint_bytes(path: Path, raw: Mapping[str, Any]) -> int:
    value = _positive(path, raw, "checkpoint_bytes") if "checkpoint_bytes" in raw else 0
    if value % STORE_ALIGN:
        raise _bad(path, "checkpoint_bytes", f"a multiple of {STORE_ALIGN}")
    return value


def _choice(path: Path, raw: Mapping[str, Any], key: str, choices: Mapping[str, _T]) -> _T:
    value = raw.get(key)
    if not isinstance(value, str) or value not in choices:
        raise _bad(path, key, "one of " + ", ".join(choices))
    return choices[value]
