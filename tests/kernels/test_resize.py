"""Nearest-neighbour resize with tables that may point beyond the end: C equals the reference, byte for byte."""

from __future__ import annotations

import numpy as np
from harness import Array
from hypothesis import strategies as st
from strategies import Draw, Scalars, channels, epilogue, sweep


@st.composite
def shape(draw: Draw) -> Scalars:
    size = st.integers(1, 7)
    return {"h": draw(size), "w": draw(size), "c": draw(channels), "p": draw(size | st.integers(8, 14)), "q": draw(size)}


@st.composite
def error(draw: Draw) -> Scalars:
    return epilogue(draw) | draw(shape())


def tables(k: Scalars, rng: np.random.Generator) -> dict[str, Array]:
    """Indices inside, around the end, or anywhere in uint16."""

    def table(size: int, out: int) -> Array:
        top = int(rng.choice([size, size, size + 2, 65536]))
        return rng.integers(0, top, out).astype(np.uint16)

    return {"rows": table(k["h"], k["p"]), "cols": table(k["w"], k["q"])}


test_fwd_s8, test_fwd_s8_more = sweep("resize_fwd_s8", shape(), tables)
test_bwd_x_s8, test_bwd_x_s8_more = sweep("resize_bwd_x_s8", error(), tables)
