"""dwconv2d: C equals the reference, byte for byte."""

from __future__ import annotations

from hypothesis import strategies as st
from strategies import Draw, Scalars, channels, epilogue, low_bits, net_window, output, part, planes, sweep, window, zero_points


@st.composite
def shape(draw: Draw) -> Scalars:
    i, m = draw(channels), draw(st.sampled_from([1, 1, 1, 2, 3]))
    return window(draw) | {"i": i, "m": m, "o": i * m, "ot": part(draw, i * m)}


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
def update(draw: Draw) -> Scalars:
    """x may lack channels that dy has, or have more."""
    i, m, o = draw(channels), draw(st.sampled_from([1, 1, 1, 2, 3])), draw(channels)
    o = draw(st.sampled_from([i * m, o]))
    return window(draw) | {"i": i, "m": m, "o": o, "ot": part(draw, min(o, i * m)), "zx": draw(zero_points)}


@st.composite
def q16(draw: Draw) -> Scalars:
    return draw(update()) | {"af": draw(low_bits)}


@st.composite
def sr8(draw: Draw) -> Scalars:
    return draw(update()) | {"stream": draw(st.integers(0, 65535))}


test_fwd_s8, test_fwd_s8_more = sweep("dwconv2d_fwd_s8", forward())
test_bwd_x_s8, test_bwd_x_s8_more = sweep("dwconv2d_bwd_x_s8", error())
test_upd_q16, test_upd_q16_more = sweep("dwconv2d_upd_q16", q16())
test_upd_sr8, test_upd_sr8_more = sweep("dwconv2d_upd_sr8", sr8())
