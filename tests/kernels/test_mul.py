"""Elementwise multiplication: C equals the reference, byte for byte."""

from __future__ import annotations

from hypothesis import strategies as st
from strategies import Draw, Scalars, epilogue, factors, output, pair, sweep, zero_points


@st.composite
def forward(draw: Draw) -> Scalars:
    mult, shift = draw(factors)
    return pair(draw) | output(draw) | {"mult": mult, "shift": shift, "za": draw(zero_points), "zb": draw(zero_points)}


@st.composite
def error_a(draw: Draw) -> Scalars:
    return epilogue(draw) | pair(draw) | {"zb": draw(zero_points)}


@st.composite
def error_b(draw: Draw) -> Scalars:
    return epilogue(draw) | pair(draw) | {"za": draw(zero_points)}


test_fwd_s8, test_fwd_s8_more = sweep("mul_fwd_s8", forward())
test_bwd_a_s8, test_bwd_a_s8_more = sweep("mul_bwd_a_s8", error_a())
test_bwd_b_s8, test_bwd_b_s8_more = sweep("mul_bwd_b_s8", error_b())
