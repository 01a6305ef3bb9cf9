"""Softmax: C equals the reference, byte for byte."""

from __future__ import annotations

from hypothesis import strategies as st
from strategies import Draw, Scalars, channels, sweep

from mcugrad.lower.quant import softmax_params


@st.composite
def forward(draw: Draw) -> Scalars:
    p = softmax_params(draw(st.sampled_from([0.5, 1.0, 3.0])), draw(st.floats(2.0**-12, 4.0)))
    c = draw(channels | st.integers(34, 1500))
    return {"n": draw(st.integers(1, 3)), "c": c, "mult": p.mult, "shift": p.shift, "diff_min": p.diff_min}


test_fwd_s8, test_fwd_s8_more = sweep("softmax_fwd_s8", forward())
