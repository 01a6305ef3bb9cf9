"""A file of results that grows as they are known: JSON lines, the first of them says what they were made from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from mcugrad.errors import UsageError
from mcugrad.training.checkpoint import write_atomic

Inputs = Mapping[str, str | int | float | None]


@dataclass(slots=True)
class Store:
    """``known``: key -> result. ``resumed``: how many results were there when it was opened."""

    path: Path
    known: dict[str, Any] = field(default_factory=dict)
    resumed: int = 0
    _file: TextIO | None = None

    def add(self, key: str, value: object) -> None:
        """Append one result: on the disk before this returns."""
        if self._file is None:
            self._file = self.path.open("a", encoding="utf-8")
        self._file.write(json.dumps({"key": key, "value": value}) + "\n")
        self._file.flush()
        self.known[key] = value

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def open_store(path: Path, inputs: Inputs) -> Store:
    """Go on with the results in ``path`` where they were made from the same inputs; a line that a kill cut in two is dropped.

    Raises UsageError where they were made from others, or where the file cannot be read or written.
    """
    head = json.dumps({"inputs": dict(inputs)})
    try:
        lines = path.read_text(encoding="utf-8").split("\n") if path.exists() else []
    except (OSError, UnicodeDecodeError) as e:
        raise UsageError(f"cannot read {path}: {e}", "choose another --out") from None
    whole = lines[:-1]
    if not whole:
        _write(path, [head])
        return Store(path)
    _require_same(path, whole[0], inputs)
    known = {}
    for number, line in enumerate(whole[1:], 2):
        key, value = _result(path, number, line)
        known[key] = value
    if lines[-1]:
        _write(path, whole)
    return Store(path, known, len(known))


def _write(path: Path, lines: list[str]) -> None:
    write_atomic(path, "".join(line + "\n" for line in lines).encode())


def _require_same(path: Path, line: str, inputs: Inputs) -> None:
    try:
        found = json.loads(line)["inputs"]
        differ = [f"{k} ({found.get(k)}, now {inputs.get(k)})" for k in {**found, **inputs} if found.get(k) != inputs.get(k)]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UsageError(f"{path} is not a file of scores", "choose another --out") from None
    if differ:
        raise UsageError(f"{path} has the scores of other inputs: {', '.join(differ)}", "choose another --out, or delete that folder")


def _result(path: Path, number: int, line: str) -> tuple[str, Any]:
    try:
        record = json.loads(line)
        return str(record["key"]), record["value"]
    except (ValueError, KeyError, TypeError):
        raise UsageError(f"{path}: line {number} is damaged", "delete that line, or choose another --out") from None
