"""Elementwise addition: C equals the reference, byte for byte."""

from __future__ import annotations

from hypothesis import strategies as st
from strategies import Draw, Scalars, channels, epilogue, output, positive_q31, sweep, zero_points

length = channels | st.integers(1, 300)


@st.composite
def forward(draw: Draw) -> Scalars:
    k = {name: draw(positive_q31) for name in ("am", "bm", "ym")}
    k |= {"ash": draw(st.integers(-4, 0) | st.integers(-31, 0)), "bsh": draw(st.integers(-4, 0) | st.integers(-31, 0))}
    k |= {"ysh": draw(st.integers(-20, -15) | st.integers(-31, 30)), "za": draw(zero_points), "zb": draw(zero_points)}
    return k | {"n": draw(length)} | output(draw)


@st.composite
def error(draw: Draw) -> Scalars:
    return epilogue(draw) | {"n": draw(length)}


test_fwd_s8, test_fwd_s8_more = sweep("add_fwd_s8", forward())
test_bwd_x_s8, test_bwd_x_s8_more = sweep("add_bwd_x_s8", error())
