"""The bias update and the clock of the draws: C equals the reference, byte for byte."""

from __future__ import annotations

import numpy as np
from harness import Array, check
from hypothesis import strategies as st
from strategies import Draw, Scalars, channels, fraction_bits, part, sweep

from mcugrad.ref.memory import DTYPES


@st.composite
def update(draw: Draw) -> Scalars:
    bf = draw(fraction_bits)
    return {"n": draw(st.integers(1, 60)), "o": draw(channels), "bf": bf, "af": part(draw, min(bf, 15))}


test_upd_s32, test_upd_s32_more = sweep("bias_upd_s32", update())


def _clock(tick: int) -> dict[str, Array]:
    return {"rng": np.array([(7, tick)], DTYPES["mg_rng"])}


def test_tick() -> None:
    assert check("tick", {}, 1, _clock(41))["rng"].tolist() == [(7, 42)]


def test_tick_wraps() -> None:
    assert check("tick", {}, 1, _clock(2**32 - 1))["rng"].tolist() == [(7, 0)]
