"""Softmax and its error: C equals the reference, byte for byte."""

from __future__ import annotations

from hypothesis import strategies as st
from strategies import Draw, Scalars, channels, epilogue, sweep

from mcugrad.lower.quant import softmax_params


@st.composite
def forward(draw: Draw) -> Scalars:
    p = softmax_params(draw(st.sampled_from([0.5, 1.0, 3.0])), draw(st.floats(2.0**-12, 4.0)))
    c = draw(channels | st.integers(34, 1500))
    return {"n": draw(st.integers(1, 3)), "c": c, "mult": p.mult, "shift": p.shift, "diff_min": p.diff_min}


@st.composite
def error(draw: Draw) -> Scalars:
    return epilogue(draw) | {"n": draw(st.integers(1, 3)), "c": draw(channels | st.integers(34, 300))}


test_bwd_x_s8, test_bwd_x_s8_more = sweep("softmax_bwd_x_s8", error())
test_fwd_s8, test_fwd_s8_more = sweep("softmax_fwd_s8", forward())
