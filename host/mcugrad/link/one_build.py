"""Firmware, plan and host must be of one build: the table of step kinds (ops.def) has one hash in all three."""

from __future__ import annotations

import struct

from mcugrad.errors import PlanError
from mcugrad.link.protocol import Caps
from mcugrad.plan.opsdef import ops_hash

_MAGIC, _OPS_HASH_AT = b"MGPL", 8


def require_one_build(caps: Caps, plan: bytes) -> None:
    """Raise PlanError (exit 6) where the firmware behind ``caps`` or ``plan`` is of another build than the other; says which.

    What is no plan at all is left to the device to refuse.
    """
    if len(plan) < _OPS_HASH_AT + 4 or not plan.startswith(_MAGIC):
        return
    (of_plan,) = struct.unpack_from("<I", plan, _OPS_HASH_AT)
    if of_plan == caps.ops_hash:
        return
    ours = ops_hash()
    firmware = f"the firmware of {caps.board} (version {caps.firmware}, step table {caps.ops_hash:08x})"
    if of_plan == ours:
        raise PlanError(f"{firmware} is of another build than this host and the plan ({ours:08x})", "build and flash the firmware again")
    if caps.ops_hash == ours:
        raise PlanError(f"the plan (step table {of_plan:08x}) is of another build than {firmware} and this host", "make the plan again")
    raise PlanError(
        f"the plan (step table {of_plan:08x}), {firmware} and this host ({ours:08x}) are of different builds",
        "build and flash the firmware again, then make the plan again",
    )
