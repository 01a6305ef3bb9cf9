"""The boards that tests run on: a word of --mcugrad-board, or an entry of a board map, read and checked.

    boards:
      - name: desk                    # what --mcugrad-board and the reports say
        board: nucleo-f446re          # a folder of boards/
        port: /dev/serial/by-id/usb-STMicroelectronics_STM32_STLink_066BFF-if02
        baud: 115200                  # left out: as fast as both ends can
        reset: false                  # DTR and RTS are left alone, which reset many boards; left out: true
        probe: 066BFF303435554157     # left out: the only probe that there is
        flash: true                   # write the trainer firmware before the first test
        power: uhubctl -l 1-1 -p 2 -a cycle    # run when the board no longer answers

Only ``name`` and ``board`` are needed of a board that runs on this machine, which has none of the others.
"""

from __future__ import annotations

import difflib
import importlib
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcugrad.board import Board, Kind, find_board
from mcugrad.board.open import parse_line
from mcugrad.errors import UsageError
from mcugrad.link.transport import DEFAULT_BAUD, Lines

_HARDWARE_KEYS = ("port", "baud", "reset", "probe", "flash", "power")
_KEYS = ("name", "board", *_HARDWARE_KEYS)


@dataclass(frozen=True, slots=True)
class Place:
    """One board on the bench. ``board``: its folder of boards/, empty where the port alone is known. ``port`` is empty for a board that
    runs on this machine. ``baud`` None: as fast as both ends can. ``power``: the command, as words, that takes its power away and gives
    it back."""

    name: str
    board: str
    port: str = ""
    baud: int | None = None
    lines: Lines = Lines.RAISE
    probe: str = ""
    flash: bool = False
    power: tuple[str, ...] = ()

    @property
    def spec(self) -> str:
        """What open_board takes."""
        baud = "" if self.baud is None else f":{self.baud}"
        lines = ":no-reset" if self.lines is Lines.LEAVE else ""
        return f"serial:{self.port}{baud}{lines}" if self.port else self.board


def place_of(word: str) -> Place:
    """The place that --mcugrad-board names without a map: a board that runs on this machine, or a line as in parse_line. UsageError."""
    if word.startswith("serial:"):
        line = parse_line(word)
        return Place(word, "", line.port, line.baud, line.lines)
    if find_board(word).kind is Kind.HARDWARE:
        raise UsageError(f"{word} is hardware, and no map says where", "give --mcugrad-map FILE.yaml, or --mcugrad-board serial:PORT")
    return Place(word, word)


def read_map(path: Path) -> Mapping[str, Place]:
    """The places of a map file, .yaml or .json, by name. Raises UsageError with the file, the entry, the key and what it must be."""
    content = _parsed(path)
    if not isinstance(content, dict) or set(content) != {"boards"} or not isinstance(content["boards"], list) or not content["boards"]:
        raise UsageError(
            f"{path}: a board map has one key, boards, a list of one entry or more", "see mcugrad/hil/board_map.py for an example"
        )
    places = [_Entry(path, k, raw).place() for k, raw in enumerate(content["boards"])]
    for what, of in (("name", _name_of), ("port", _port_of), ("probe", _probe_of)):
        _require_unique(path, what, [value for p in places if (value := of(p))])
    return {p.name: p for p in places}


def _name_of(place: Place) -> str:
    return place.name


def _port_of(place: Place) -> str:
    return "" if place.port == "auto" else place.port


def _probe_of(place: Place) -> str:
    return place.probe


def _require_unique(path: Path, what: str, values: Sequence[str]) -> None:
    twice = sorted({v for v in values if values.count(v) > 1})
    if twice:
        raise UsageError(f"{path}: two entries have the {what} {twice[0]}", f"give each board its own {what}")


class _Entry:
    """One entry of the list ``boards``, with what error texts call it."""

    def __init__(self, path: Path, index: int, raw: Any) -> None:
        label = f" ({raw['name']})" if isinstance(raw, dict) and isinstance(raw.get("name"), str) else ""
        self._where = f"{path}: boards[{index}]{label}"
        if not isinstance(raw, dict):
            raise UsageError(f"{self._where} is {raw!r}, not a table of {', '.join(_KEYS)}", "write name: … and board: …")
        self._raw: Mapping[str, Any] = raw

    def place(self) -> Place:
        self._require_known_keys()
        name, board = self._text("name"), self._board()
        if any(c.isspace() for c in name):
            raise self._wrong("name", "one word")
        if board.kind is not Kind.HARDWARE:
            self._require_no_hardware_keys(board)
            return Place(name, board.name)
        flash = self._flag("flash", absent=False)
        if flash and board.flasher is None:
            raise self._wrong("flash", f"false: nothing is known of flashing {board.name}")
        probe = self._text("probe") if "probe" in self._raw else ""
        baud, lines = self._baud(board), Lines.RAISE if self._flag("reset", absent=True) else Lines.LEAVE
        return Place(name, board.name, self._text("port"), baud, lines, probe, flash, self._power())

    def _board(self) -> Board:
        try:
            return find_board(self._text("board"))
        except UsageError as e:
            raise UsageError(f"{self._where}: {e.text}", e.hint) from None

    def _require_known_keys(self) -> None:
        for key in self._raw:
            if key not in _KEYS:
                near = difflib.get_close_matches(str(key), _KEYS, 1)
                raise UsageError(
                    f"{self._where}: there is no key {key!r}", f"did you mean {near[0]}?" if near else f"keys: {', '.join(_KEYS)}"
                )

    def _require_no_hardware_keys(self, board: Board) -> None:
        for key in _HARDWARE_KEYS:
            if key in self._raw:
                raise UsageError(f"{self._where}: {board.name} runs on this machine and has no {key}", f"leave {key} out")

    def _text(self, key: str) -> str:
        value = self._raw.get(key)
        if isinstance(value, str) and value:
            return value
        if isinstance(value, int | float) and not isinstance(value, bool):
            raise UsageError(f"{self._where}: {key} is {value!r}, which is read as a number", f'put it into quotes: {key}: "…"')
        raise self._wrong(key, "a text")

    def _baud(self, board: Board) -> int | None:
        if "baud" not in self._raw:
            return board.uart.baud if board.uart and board.uart.baud != DEFAULT_BAUD else None
        value = self._raw["baud"]
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
        raise self._wrong("baud", "an integer above 0")

    def _flag(self, key: str, *, absent: bool) -> bool:
        value = self._raw.get(key, absent)
        if isinstance(value, bool):
            return value
        raise self._wrong(key, "true or false")

    def _power(self) -> tuple[str, ...]:
        value = self._raw.get("power", [])
        try:
            words = shlex.split(value) if isinstance(value, str) else value
        except ValueError as e:
            raise UsageError(f"{self._where}: power {value!r} is no command: {e}", "correct the map") from None
        if isinstance(words, list) and all(isinstance(w, str) for w in words) and bool(words) == ("power" in self._raw):
            return tuple(words)
        raise self._wrong("power", "a command, as one text or as a list of words")

    def _wrong(self, key: str, must: str) -> UsageError:
        found = repr(self._raw[key]) if key in self._raw else "missing"
        return UsageError(f"{self._where}: {key} must be {must}, it is {found}", "correct the map")


def _parsed(path: Path) -> Any:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise UsageError(f"{path} cannot be read as text: {getattr(e, 'strerror', None) or e}", "check the path of --mcugrad-map") from None
    return _json(path, text) if path.suffix == ".json" else _yaml(path, text)


def _json(path: Path, text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=lambda pairs: _table(path, pairs))
    except ValueError as e:
        raise UsageError(f"{path} is not JSON: {e}", "correct it, or write YAML into a .yaml file") from None


def _table(path: Path, pairs: Sequence[tuple[Any, Any]]) -> dict[Any, Any]:
    _require_unique_keys(path, [key for key, _ in pairs])
    return dict(pairs)


def _require_unique_keys(path: Path, keys: Sequence[Any]) -> None:
    twice = [key for k, key in enumerate(keys) if key in keys[:k]]
    if twice:
        raise UsageError(f"{path}: the key {twice[0]} stands twice in one table", "begin each board with its own -")


def _yaml(path: Path, text: str) -> Any:
    try:
        yaml: Any = importlib.import_module("yaml")
    except ImportError:
        raise UsageError(f"{path}: reading YAML needs PyYAML", 'pip install "mcugrad[hil]", or write the same as a .json file') from None
    try:
        return yaml.load(text, _strict_loader(yaml, path))
    except yaml.YAMLError as e:
        raise UsageError(f"{path} is not YAML: {' '.join(str(e).split())}", "correct it") from None


def _strict_loader(yaml: Any, path: Path) -> Any:
    """yaml.SafeLoader, which takes the last of two equal keys, made to refuse them."""

    class Strict(yaml.SafeLoader):  # type: ignore[misc]
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            _require_unique_keys(path, [self.construct_object(key, True) for key, _ in node.value])
            return super().construct_mapping(node, deep)

    return Strict
