"""A checkpoint: the bytes of STATE, and what it takes to make the plan that they belong to."""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path

from mcugrad.errors import PlanError, UsageError

MAGIC = b"MGCKPT1\n"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """``plan_crc`` and ``model_hash`` are those of the plan's header; the rest but STATE are the compiler's arguments."""

    plan_crc: int
    model_hash: int
    scheme: str
    classes: int | None
    loss: str
    ws: int
    seed: int
    state: bytes
    channels: str = "first"
    batch: int = 1
    ram: int | None = None


def write_atomic(path: Path, data: bytes) -> None:
    """Write a whole file or nothing: a temporary file beside it, then a rename. Raises UsageError where that is not possible."""
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as f:
            f.write(data)
            f.flush()
            os.fsync(f.fileno())
        part.replace(path)
    except OSError as e:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise UsageError(f"cannot write {path}: {e.strerror}", "choose another --out") from None


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
    try:
        return Checkpoint(**json.loads(raw[start : start + size]), state=raw[start + size : -4])
    except (ValueError, TypeError) as e:
        raise PlanError(f"the head of checkpoint {path} is not understood ({e})", "use the version of mcugrad that trained it") from None
