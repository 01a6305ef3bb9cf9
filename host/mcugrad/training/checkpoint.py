"""A checkpoint: the bytes of STATE, and what it takes to make the plan that they belong to."""

from __future__ import annotations

import json
import os
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path

from mcugrad.errors import PlanError

MAGIC = b"MGCKPT1\n"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """``plan_crc`` and ``model_hash`` are those of the plan's header; ``scheme``, ``classes`` and ``ws`` are the compiler's arguments."""

    plan_crc: int
    model_hash: int
    scheme: str
    classes: int | None
    ws: int
    seed: int
    state: bytes


def write_atomic(path: Path, data: bytes) -> None:
    """Write a whole file or nothing: a temporary file beside it, then a rename."""
    part = path.with_name(path.name + ".part")
    with part.open("wb") as f:
        f.write(data)
        f.flush()
        os.fsync(f.fileno())
    part.replace(path)


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """magic, u32 length of the JSON head, the head, STATE, u32 CRC-32 of all before."""
    head = asdict(checkpoint)
    del head["state"]
    text = json.dumps(head).encode()
    body = MAGIC + len(text).to_bytes(4, "little") + text + checkpoint.state
    write_atomic(path, body + zlib.crc32(body).to_bytes(4, "little"))


def read_checkpoint(path: Path) -> Checkpoint:
    """Raises PlanError where the file is not a whole checkpoint."""
    try:
        raw = path.read_bytes()
    except OSError as e:
        raise PlanError(f"checkpoint {path}: {e.strerror}") from None
    if not raw.startswith(MAGIC) or len(raw) < len(MAGIC) + 8 or zlib.crc32(raw[:-4]) != int.from_bytes(raw[-4:], "little"):
        raise PlanError(f"{path} is not a whole checkpoint of mcugrad", "use the .ckpt file that `mcugrad train` wrote")
    start = len(MAGIC) + 4
    size = int.from_bytes(raw[len(MAGIC) : start], "little")
    head = json.loads(raw[start : start + size])
    return Checkpoint(**head, state=raw[start + size : -4])
