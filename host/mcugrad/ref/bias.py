"""The bias: gradient and update. SPEC.md 3.6. dy (N,O), b (O,) with bf fraction bits."""

from __future__ import annotations

from mcugrad.ref import update
from mcugrad.ref.fixed import Array, i64, wrap32
from mcugrad.ref.memory import Arrays, Scalars


def bias_upd_s32(k: Scalars, a: Arrays) -> Array:
    return update.s32(k, a, wrap32(i64(a["dy"]).reshape(k["n"], k["o"]).sum(axis=0)))
