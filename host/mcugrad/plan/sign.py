"""Signed plans: HMAC-SHA-256 behind the plan, for boards whose firmware takes no others (SPEC.md section 1.1)."""

from __future__ import annotations

import hmac
import os
from pathlib import Path

from mcugrad.errors import UsageError

KEY_VARIABLE = "MCUGRAD_PLAN_KEY"
"""Environment variable that names the key file: firmware is built to demand its signature, and plans are sent with it."""

KEY_BYTES = TAG_BYTES = 32


def key_file() -> Path | None:
    """The key file of this process, None where none is set. Raises UsageError where it does not hold 32 bytes."""
    name = os.environ.get(KEY_VARIABLE)
    if not name:
        return None
    path = Path(name).absolute()
    try:
        size = path.stat().st_size
    except OSError as e:
        raise UsageError(f"{KEY_VARIABLE}: {path}: {e.strerror}", f"make one: head -c {KEY_BYTES} /dev/urandom > FILE") from None
    if size != KEY_BYTES:
        raise UsageError(f"{KEY_VARIABLE}: {path} has {size} bytes, a key has {KEY_BYTES}", f"head -c {KEY_BYTES} /dev/urandom > FILE")
    return path


def signed(plan: bytes) -> bytes:
    """The plan and its signature; the plan alone where no key is set. Firmware without a key does not look at the signature."""
    path = key_file()
    return plan if path is None else plan + hmac.digest(path.read_bytes(), plan, "sha256")
