"""Average pool and mean: C equals the reference, byte for byte."""

from __future__ import annotations

from hypothesis import strategies as st
from strategies import Draw, Scalars, channels, epilogue, limits, output, positive_q31, sweep, window


@st.composite
def shape(draw: Draw) -> Scalars:
    """Sometimes one window over the whole input, as a mean has it."""
    k = window(draw)
    del k["dh"], k["dw"]
    if draw(st.booleans()):
        k |= {"p": 1, "q": 1, "r": k["h"], "s": k["w"], "pt": 0, "pl": 0}
    return k | {"c": draw(channels)}


@st.composite
def forward(draw: Draw) -> Scalars:
    lo, hi = draw(limits)
    return draw(shape()) | {"lo": lo, "hi": hi}


@st.composite
def error(draw: Draw) -> Scalars:
    return draw(shape()) | epilogue(draw)


@st.composite
def mean(draw: Draw) -> Scalars:
    size = st.integers(1, 9)
    k = {"h": draw(size), "w": draw(size), "c": draw(channels), "mult": draw(positive_q31), "shift": draw(st.integers(-31, 30))}
    bias = st.sampled_from([-(2**31), 2**31 - 1]) | st.integers(-9999, 9999)
    return k | {"bias": draw(bias)} | output(draw)


test_avgpool_fwd_s8, test_avgpool_fwd_s8_more = sweep("avgpool_fwd_s8", forward())
test_avgpool_bwd_x_s8, test_avgpool_bwd_x_s8_more = sweep("avgpool_bwd_x_s8", error())
test_mean_fwd_s8, test_mean_fwd_s8_more = sweep("mean_fwd_s8", mean())
