"""The clock of the random draws. SPEC.md 3.6."""

from __future__ import annotations

from mcugrad.ref.memory import Arrays, Scalars


def tick(_: Scalars, a: Arrays) -> None:
    a["rng"]["tick"][0] = (int(a["rng"]["tick"][0]) + 1) & 0xFFFFFFFF
