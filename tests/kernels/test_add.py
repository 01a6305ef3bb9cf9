"""Elementwise addition and subtraction, the second operand spread or not: C equals the reference, byte for byte."""

from __future__ import annotations

from hypothesis import strategies as st
from strategies import Draw, Scalars, epilogue, lengths, output, pair, positive_q31, sweep, zero_points

signs = st.sampled_from([1, -1])


@st.composite
def forward(draw: Draw) -> Scalars:
    k = {name: draw(positive_q31) for name in ("am", "bm", "ym")}
    k |= {"ash": draw(st.integers(-4, 0) | st.integers(-31, 0)), "bsh": draw(st.integers(-4, 0) | st.integers(-31, 0))}
    k |= {"ysh": draw(st.integers(-20, -15) | st.integers(-31, 30)), "za": draw(zero_points), "zb": draw(zero_points)}
    return k | {"asign": draw(signs), "bsign": draw(signs)} | pair(draw) | output(draw)


@st.composite
def error(draw: Draw) -> Scalars:
    return epilogue(draw) | {"n": draw(lengths), "sign": draw(signs)}


@st.composite
def spread_error(draw: Draw) -> Scalars:
    return epilogue(draw) | pair(draw) | {"up": draw(st.integers(0, 12)), "sign": draw(signs)}


test_fwd_s8, test_fwd_s8_more = sweep("add_fwd_s8", forward())
test_bwd_x_s8, test_bwd_x_s8_more = sweep("add_bwd_x_s8", error())
test_sum_bwd_x_s8, test_sum_bwd_x_s8_more = sweep("sum_bwd_x_s8", spread_error())
