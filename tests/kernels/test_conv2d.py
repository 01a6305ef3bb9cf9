"""conv2d: C equals the reference, byte for byte."""

from __future__ import annotations

from hypothesis import strategies as st
from strategies import Draw, Scalars, channels, epilogue, low_bits, net_window, output, part, planes, sweep, window, zero_points


@st.composite
def shape(draw: Draw) -> Scalars:
    g = draw(st.sampled_from([1, 1, 2, 3]))
    i, o = draw(channels), draw(channels) * g
    return window(draw) | {"i": i, "o": o, "g": g, "it": part(draw, i)}


@st.composite
def forward(draw: Draw) -> Scalars:
    """A third of them as nets have them: over maps wider than a chunk of 16 outputs, a byte behind a ReLU."""
    k = draw(shape()) | planes(draw) | output(draw)
    if draw(st.integers(0, 2)) == 0:
        k |= net_window(draw) | {"zy": -128, "lo": -128, "hi": 127}
    return k


@st.composite
def error(draw: Draw) -> Scalars:
    return draw(shape()) | epilogue(draw) | {"ws": draw(st.integers(1, 2))}


@st.composite
def q16(draw: Draw) -> Scalars:
    return draw(shape()) | {"zx": draw(zero_points), "af": draw(low_bits)}


@st.composite
def sr8(draw: Draw) -> Scalars:
    return draw(shape()) | {"zx": draw(zero_points), "stream": draw(st.integers(0, 65535))}


test_fwd_s8, test_fwd_s8_more = sweep("conv2d_fwd_s8", forward())
test_bwd_x_s8, test_bwd_x_s8_more = sweep("conv2d_bwd_x_s8", error())
test_upd_q16, test_upd_q16_more = sweep("conv2d_upd_q16", q16())
test_upd_sr8, test_upd_sr8_more = sweep("conv2d_upd_sr8", sr8())
