"""Mean squared error: C equals the reference, byte for byte, and both are right."""

from __future__ import annotations

import numpy as np
import pytest
from harness import Array, args, bytes_like, check, reals, words
from hypothesis import strategies as st
from strategies import Draw, Scalars, channels, lengths, sweep, zero_points

from mcugrad.ref.memory import DTYPES, Arrays

steps = st.sampled_from([0.0, 1e-45, 2.0**-126, 2.0**64]) | st.floats(2.0**-14, 2.0, width=32)
"""Scales: ordinary, zero, the smallest, the largest."""


@st.composite
def of_sums(draw: Draw) -> Scalars:
    return {"c": draw(channels | st.integers(34, 700)), "st": draw(steps), "zt": draw(zero_points)}


@st.composite
def of_outputs(draw: Draw) -> Scalars:
    return {"n": draw(lengths), "st": draw(steps), "sx": draw(steps), "zx": draw(zero_points), "zt": draw(zero_points)}


def sums(k: Scalars, rng: np.random.Generator) -> dict[str, Array]:
    """Ordinary sums, or words and scales of any size; sometimes all equal to the target."""
    c, target = k["c"], bytes_like(rng, k["c"])
    given: dict[str, Array] = {"args": args(rng), "target": target}
    if rng.integers(4) == 0:
        return given | {"x": words(rng, c), "scale": reals(rng, c)}
    scale = np.full(c, k["st"], np.float32)
    x = target.astype(np.int32) - k["zt"]
    return given | {"x": x + (rng.integers(-9, 9, c).astype(np.int32) if rng.integers(4) else 0), "scale": scale}


test_s32, test_s32_more = sweep("mse_s32", of_sums(), sums)
test_s8, test_s8_more = sweep("mse_s8", of_outputs())


def right(a: Arrays, v: Array, target: Array) -> None:
    """The result and the error of real outputs and targets."""
    d = v - target
    g = 2 * d / d.size
    loss, peak, argmax, skipped = a["result"][0].tolist()
    assert loss == pytest.approx((d * d).mean(), rel=1e-5)
    assert peak == pytest.approx(np.abs(g).max(), rel=1e-5)
    assert (argmax, skipped) == (0, 0)
    assert a["unit"][0] == pytest.approx(peak / 127)
    assert a["dy"] == pytest.approx(g / peak * 127, abs=0.51)


ARGS = np.array([(0.01, 0, 0, 0)], DTYPES["mg_args"])


def test_values_of_sums() -> None:
    rng = np.random.default_rng(1)
    x, target, scale = rng.integers(-9000, 9000, 40), rng.integers(-128, 128, 40), rng.uniform(0.001, 0.002, 40).astype(np.float32)
    given = {"x": x.astype(np.int32), "target": target.astype(np.int8), "scale": scale, "args": ARGS}
    right(check("mse_s32", {"c": 40, "st": 0.125, "zt": -3}, 1, given), x * scale, (target + 3) * 0.125)


def test_values_of_outputs() -> None:
    rng = np.random.default_rng(2)
    x, target = rng.integers(-128, 128, 640), rng.integers(-128, 128, 640)
    given = {"x": x.astype(np.int8), "target": target.astype(np.int8), "args": ARGS}
    right(check("mse_s8", {"n": 640, "sx": 0.0625, "st": 0.125, "zx": 7, "zt": -3}, 1, given), (x - 7) * 0.0625, (target + 3) * 0.125)


@pytest.mark.parametrize("scale", [1.0, 0.0, 1e-45, 1e-44])
def test_no_error_or_one_too_small_to_be_divided_is_skipped(scale: float) -> None:
    """The peak 1e-45 is a float, a hundred and twenty-seventh of it is none."""
    target = np.zeros(2, np.int8)
    x = target if scale == 1 else np.array([1, -1], np.int8)
    k = {"n": 2, "sx": float(np.float32(scale)), "st": 1.0, "zx": 0, "zt": 0}
    a = check("mse_s8", k, 1, {"x": x, "target": target, "args": ARGS})
    assert a["result"]["skipped"][0] == 1
    assert a["unit"][0] == 0
    assert not a["dy"].any()
