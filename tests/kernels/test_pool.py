"""Average pool, max pool and mean: C equals the reference, byte for byte."""

from __future__ import annotations

import numpy as np
from harness import check
from hypothesis import strategies as st
from strategies import Draw, Scalars, channels, epilogue, epilogue_of_own_x, limits, output, positive_q31, sweep, window

from mcugrad.ref.memory import DTYPES

EXACT = {"mult": 2**30, "skip_mult": 0, "shift": 42, "skip_shift": 0, "lo": 0, "hi": 0, "has_skip": 0, "has_mask": 0}
"""The scale of an error whose one is 2^12."""


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
def error_of_maximum(draw: Draw) -> Scalars:
    return draw(shape()) | epilogue_of_own_x(draw)


@st.composite
def mean(draw: Draw) -> Scalars:
    size = st.integers(1, 9)
    k = {"h": draw(size), "w": draw(size), "c": draw(channels), "mult": draw(positive_q31), "shift": draw(st.integers(-31, 30))}
    bias = st.sampled_from([-(2**31), 2**31 - 1]) | st.integers(-9999, 9999)
    return k | {"bias": draw(bias)} | output(draw)


test_avgpool_fwd_s8, test_avgpool_fwd_s8_more = sweep("avgpool_fwd_s8", forward())
test_avgpool_bwd_x_s8, test_avgpool_bwd_x_s8_more = sweep("avgpool_bwd_x_s8", error())
test_maxpool_fwd_s8, test_maxpool_fwd_s8_more = sweep("maxpool_fwd_s8", forward())
test_maxpool_bwd_x_s8, test_maxpool_bwd_x_s8_more = sweep("maxpool_bwd_x_s8", error_of_maximum())
test_mean_fwd_s8, test_mean_fwd_s8_more = sweep("mean_fwd_s8", mean())


def test_a_window_of_padding_only() -> None:
    """The first window of maxpool has no tap inside: -128, clamped; its error goes nowhere."""
    k = {"h": 1, "w": 2, "c": 1, "p": 1, "q": 2, "r": 1, "s": 1, "sh": 1, "sw": 1, "pt": 0, "pl": 1}
    x, none = np.array([5, 6], np.int8), np.zeros(1, DTYPES["mg_exponent"])
    assert check("maxpool_fwd_s8", k | {"lo": -100, "hi": 127}, 1, {"x": x})["y"].tolist() == [-100, 5]
    given = {"x": x, "dy": np.array([90, 100], np.int8), "ry": none, "rx": none}
    assert check("maxpool_bwd_x_s8", k | EXACT, 1, given)["dx"].tolist() == [100, 0]


def test_the_first_of_equal_taps_gets_the_error() -> None:
    """One window of 2 × 2 over equal values, and -128 everywhere."""
    k = {"h": 2, "w": 2, "c": 1, "p": 1, "q": 1, "r": 2, "s": 2, "sh": 1, "sw": 1, "pt": 0, "pl": 0}
    none = np.zeros(1, DTYPES["mg_exponent"])
    for x, dx in (([3, 3, 3, 3], [100, 0, 0, 0]), ([-128] * 4, [100, 0, 0, 0]), ([1, 2, 2, 1], [0, 100, 0, 0])):
        given = {"x": np.array(x, np.int8), "dy": np.array([100], np.int8), "ry": none, "rx": none}
        assert check("maxpool_bwd_x_s8", k | EXACT, 1, given)["dx"].tolist() == dx
