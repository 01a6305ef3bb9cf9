"""linear and requant: C equals the reference, byte for byte."""

from __future__ import annotations

from hypothesis import strategies as st
from strategies import Draw, Scalars, channels, epilogue, low_bits, output, part, planes, sweep, zero_points


@st.composite
def shape(draw: Draw) -> Scalars:
    i = draw(channels | st.integers(64, 300))
    return {"n": draw(st.integers(1, 4)), "i": i, "o": draw(channels), "it": part(draw, i)}


@st.composite
def forward_s32(draw: Draw) -> Scalars:
    return draw(shape()) | planes(draw)


@st.composite
def forward_s8(draw: Draw) -> Scalars:
    return draw(forward_s32()) | output(draw)


@st.composite
def requant(draw: Draw) -> Scalars:
    return {"n": draw(st.integers(1, 4)), "o": draw(channels)} | output(draw)


@st.composite
def error(draw: Draw) -> Scalars:
    return draw(shape()) | epilogue(draw) | {"ws": draw(st.integers(1, 2))}


@st.composite
def q16(draw: Draw) -> Scalars:
    return draw(shape()) | {"zx": draw(zero_points), "af": draw(low_bits)}


@st.composite
def sr8(draw: Draw) -> Scalars:
    return draw(shape()) | {"zx": draw(zero_points), "stream": draw(st.integers(0, 65535))}


test_fwd_s8, test_fwd_s8_more = sweep("linear_fwd_s8", forward_s8())
test_fwd_s32, test_fwd_s32_more = sweep("linear_fwd_s32", forward_s32())
test_requant_fwd_s8, test_requant_fwd_s8_more = sweep("requant_fwd_s8", requant())
test_bwd_x_s8, test_bwd_x_s8_more = sweep("linear_bwd_x_s8", error())
test_upd_q16, test_upd_q16_more = sweep("linear_upd_q16", q16())
test_upd_sr8, test_upd_sr8_more = sweep("linear_upd_sr8", sr8())
