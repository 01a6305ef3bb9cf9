"""prelu on both sides of zero: C equals the reference, byte for byte."""

from __future__ import annotations

from hypothesis import strategies as st
from strategies import Draw, Scalars, channels, epilogue_of_own_x, factors, sweep, zero_points


@st.composite
def shape(draw: Draw) -> Scalars:
    return {"p": draw(channels), "c": draw(channels), "zx": draw(zero_points)}


@st.composite
def forward(draw: Draw) -> Scalars:
    (pm, psh), (nm, nsh) = draw(factors), draw(factors)
    k = {"pm": pm, "psh": psh, "nm": nm, "nsh": nsh, "za": draw(zero_points), "zy": draw(zero_points)}
    return draw(shape()) | k | {"rounding": draw(st.integers(0, 1))}


@st.composite
def error(draw: Draw) -> Scalars:
    one = st.sampled_from([-32768, 0, 1, 16384, 32767])
    return epilogue_of_own_x(draw) | draw(shape()) | {"one": draw(one)}


test_fwd_s8, test_fwd_s8_more = sweep("prelu_fwd_s8", forward())
test_bwd_x_s8, test_bwd_x_s8_more = sweep("prelu_bwd_x_s8", error())
