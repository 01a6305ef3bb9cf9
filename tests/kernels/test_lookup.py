"""Table look-up with random tables and slopes: C equals the reference, byte for byte."""

from __future__ import annotations

import numpy as np
from harness import check
from hypothesis import strategies as st
from strategies import Draw, Scalars, epilogue_of_own_x, lengths, sweep


@st.composite
def forward(draw: Draw) -> Scalars:
    return {"n": draw(lengths)}


@st.composite
def error(draw: Draw) -> Scalars:
    return epilogue_of_own_x(draw) | {"n": draw(lengths)}


test_fwd_s8, test_fwd_s8_more = sweep("lut_fwd_s8", forward())
test_bwd_x_s8, test_bwd_x_s8_more = sweep("lut_bwd_x_s8", error())


def test_every_code_finds_its_entry() -> None:
    codes = np.arange(-128, 128).astype(np.int8)
    assert check("lut_fwd_s8", {"n": 256}, 1, {"x": codes, "table": codes[::-1]})["y"].tolist() == codes[::-1].tolist()
