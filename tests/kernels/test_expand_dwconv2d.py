"""expand_dwconv2d: C equals the reference byte for byte, and both equal the two steps that it stands for."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from harness import check, lay_out
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import Draw, Scalars, channels, fraction_bits, limits, net_window, output, sweep, window, zero_points

from mcugrad.native import run_step
from mcugrad.plan.opsdef import kinds
from mcugrad.ref.memory import Arrays, bind


@st.composite
def shape(draw: Draw) -> Scalars:
    """Half of them as nets have them: windows over maps wider than a chunk of 16 outputs, a byte behind a ReLU."""
    k = (net_window(draw) if draw(st.booleans()) else window(draw)) | {"i": draw(channels), "o": draw(channels), "zx": draw(zero_points)}
    ends = output(draw)
    elo, ehi = draw(limits)
    k |= {"ze": draw(zero_points), "elo": elo, "ehi": ehi, "bef": draw(fraction_bits), "bdf": draw(fraction_bits)}
    if draw(st.booleans()):
        ends |= {"zy": -128, "lo": -128, "hi": 127}
        k |= {"ze": -128, "elo": -128, "ehi": 127}
    return k | ends


test_fwd_s8, test_fwd_s8_more = sweep("expand_dwconv2d_fwd_s8", shape())


def run_c(name: str, scalars: Scalars, given_arrays: Arrays) -> np.ndarray[tuple[int], np.dtype[np.int8]]:
    """y of one step of the C library."""
    wanted = {field.name for field in kinds()[name].refs}
    layout = lay_out(name, scalars, 0, {n: a for n, a in given_arrays.items() if n in wanted})
    assert run_step(layout.record, layout.regions) == 0
    _, arrays = bind(layout.kind, layout.values, layout.regions)
    return arrays["y"].copy()


@settings(max_examples=60, deadline=None)
@given(k=shape(), seed=st.integers(0, 2**32 - 1))
def test_it_is_the_two_steps(k: Scalars, seed: int) -> None:
    a = check("expand_dwconv2d_fwd_s8", k, seed)
    common: Mapping[str, int] = {name: k[name] for name in ("h", "w", "o", "rounding")}
    ones = dict.fromkeys(("r", "s", "sh", "sw", "dh", "dw", "g", "ws"), 1)
    first = {**common, **ones, "i": k["i"], "it": 0, "p": k["h"], "q": k["w"], "pt": 0, "pl": 0, "bf": k["bef"], "zx": k["zx"]}
    first |= {"zy": k["ze"], "lo": k["elo"], "hi": k["ehi"]}
    e = run_c("conv2d_fwd_s8", first, {"x": a["x"], "wf": a["we"], "b": a["be"], "rq": a["rqe"]})
    slides = {name: k[name] for name in ("p", "q", "r", "s", "sh", "sw", "dh", "dw", "pt", "pl", "zy", "lo", "hi")}
    second = {**common, **slides, "i": k["o"], "m": 1, "ot": 0, "ws": 1, "bf": k["bdf"], "zx": k["ze"]}
    y = run_c("dwconv2d_fwd_s8", second, {"x": e, "wf": a["wd"], "b": a["bd"], "rq": a["rqd"]})
    assert np.array_equal(y, a["y"])
