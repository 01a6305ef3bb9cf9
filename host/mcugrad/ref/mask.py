"""What a clamp lets pass, one bit an element. SPEC.md 3.2. Letters: x (N,), bits ((N + 7) // 8,), the first element in the lowest bit."""

from __future__ import annotations

import numpy as np

from mcugrad.ref.fixed import i64
from mcugrad.ref.memory import Arrays, Scalars


def mask_s8(k: Scalars, a: Arrays) -> None:
    x = i64(a["x"])
    a["bits"][:] = np.packbits((k["lo"] < x) & (x < k["hi"]), bitorder="little")
