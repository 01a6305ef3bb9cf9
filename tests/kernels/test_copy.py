"""Strided copy: C equals the reference, byte for byte."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from harness import Array, check
from hypothesis import strategies as st
from strategies import Draw, Scalars, sweep

AXES = range(4)


def side(draw: Draw, name: str, sizes: list[int]) -> Scalars:
    """Place, strides and length of one side. Strides of a dense array in any order of the axes, or any with 0 among them."""
    if draw(st.booleans()):
        strides, step = [0] * 4, 1
        for axis in draw(st.permutations(AXES)):
            strides[axis], step = step, step * sizes[axis]
    else:
        strides = [draw(st.sampled_from([0, 0, 1, 2, 3, 7, 40])) for _ in AXES]
    first = draw(st.sampled_from([0, 0, 1, 17]))
    last = first + sum((n - 1) * step for n, step in zip(sizes, strides, strict=True))
    return {f"{name}o": first, f"{name}n": last + 1 + draw(st.sampled_from([0, 1, 30]))} | {f"{name}{a}": strides[a] for a in AXES}


@st.composite
def block(draw: Draw) -> Scalars:
    sizes = [draw(st.sampled_from([1, 1, 2, 3, 5, 8])) for _ in AXES]
    k = {f"d{axis}": sizes[axis] for axis in AXES} | side(draw, "x", sizes) | side(draw, "y", sizes)
    return k | {"has_fill": draw(st.integers(0, 1)), "fill": draw(st.integers(-128, 127))}


@st.composite
def ascending(draw: Draw) -> Scalars:
    """Nothing filled, and on both sides the places in the order of the block, with gaps behind some axes."""
    sizes = [draw(st.sampled_from([1, 1, 2, 3, 5, 8, 13])) for _ in AXES]
    k = {f"d{axis}": sizes[axis] for axis in AXES} | {"has_fill": 0, "fill": 0}
    for name in "xy":
        extent = 0
        for axis in reversed(AXES):
            k[f"{name}{axis}"] = extent + 1 + draw(st.sampled_from([0, 0, 0, 1, 6]))
            extent += (sizes[axis] - 1) * k[f"{name}{axis}"]
        k[f"{name}o"] = draw(st.sampled_from([0, 0, 3, 20]))
        k[f"{name}n"] = k[f"{name}o"] + extent + 1 + draw(st.sampled_from([0, 2]))
    return k


def places(k: Mapping[str, float], side: str) -> Array:
    """Where the elements of a block lie in x or y, in their order."""
    at = np.array([int(k[f"{side}o"])])
    for axis in AXES:
        at = (at[:, None] + np.arange(int(k[f"d{axis}"])) * int(k[f"{side}{axis}"])).reshape(-1)
    return at


test_s8, test_s8_more = sweep("copy_s8", block())


def scalars(**changed: int) -> Scalars:
    """One element from x[0] to y[0], with changes."""
    k = {f"{name}{axis}": 0 for name in "xy" for axis in (*AXES, "o")} | {f"d{axis}": 1 for axis in AXES}
    return k | {"xn": 1, "yn": 1, "has_fill": 0, "fill": 0} | changed


def test_a_stride_of_0_spreads_x() -> None:
    given = {"x": np.array([1, 2], np.int8), "y": np.zeros(6, np.int8)}
    k = scalars(xn=2, x0=1, d0=2, d1=3, yn=6, y0=3, y1=1)
    assert check("copy_s8", k, 1, given)["y"].tolist() == [1, 1, 1, 2, 2, 2]


def test_where_two_go_to_one_place_the_last_stays() -> None:
    given = {"x": np.array([1, 2, 3], np.int8), "y": np.array([9, 9], np.int8)}
    assert check("copy_s8", scalars(xn=3, x3=1, d3=3, yn=2, yo=1), 1, given)["y"].tolist() == [9, 3]


def test_the_rest_is_filled_or_stays() -> None:
    given = {"x": np.array([1], np.int8), "y": np.array([7, 8, 9], np.int8)}
    assert check("copy_s8", scalars(yn=3, yo=1), 1, given)["y"].tolist() == [7, 1, 9]
    assert check("copy_s8", scalars(yn=3, yo=1, has_fill=1, fill=-5), 1, given)["y"].tolist() == [-5, 1, -5]
