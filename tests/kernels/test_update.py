"""The update rules at their edges, and the statistics of stochastic rounding."""

from __future__ import annotations

import numpy as np
import pytest
from harness import Array, check

from mcugrad.ref.memory import DTYPES


def given(n: int, o: int, i: int, rate: float, wt: Array) -> dict[str, Array]:
    """Contents of a linear update with dW = 128 · 255 · n, at lr · unit = 1/2."""
    return {
        "dy": np.full(n * o, -128, np.int8),
        "x": np.full(n * i, -128, np.int8),
        "ry": np.zeros(1, DTYPES["mg_exponent"]),
        "unit": np.full(1, 0.5, np.float32),
        "args": np.array([(1, 0, 0, 0)], DTYPES["mg_args"]),
        "rate": np.full(o, rate, np.float32),
        "rng": np.array([(11, 22)], DTYPES["mg_rng"]),
        "wt": wt,
    }


def test_stochastic_rounding_is_unbiased() -> None:
    """d = 128 · 255 · rate / 2 = 1/4: a quarter of 1089 weights moves by one, ± 5 standard deviations."""
    size = 33
    k = {"n": 1, "i": size, "it": size, "o": size, "stream": 5, "zx": 127}
    a = check("linear_upd_sr8", k, 1, given(1, size, size, 0.5 / (128 * 255), np.zeros(size * size, np.int8)))
    moved = a["wt"] != 0
    assert set(a["wt"].tolist()) == {0, -1}
    assert abs(moved.sum() - size * size / 4) < 5 * (size * size * 3 / 16) ** 0.5


@pytest.mark.parametrize("power", [-30, -33, -34, -37])
def test_stochastic_rounding_of_very_small_steps(power: int) -> None:
    """A step factor below 2^-32 leaves a shift of more than 62 bits; the gradient is the largest that 2000 rows give."""
    k = {"n": 2000, "i": 16, "it": 16, "o": 16, "stream": 5, "zx": 127}
    a = check("linear_upd_sr8", k, 1, given(2000, 16, 16, 2.0**power, np.zeros(256, np.int8)))
    expected = 128 * 255 * 2000 * 2.0**power / 2 * 256
    assert abs(-a["wt"].astype(int).sum() - expected) <= 5 * expected**0.5 + 1


def test_a_zero_learning_rate_changes_nothing() -> None:
    k = {"n": 1, "i": 2, "it": 2, "o": 2, "zx": 0, "af": 0}
    contents = given(1, 2, 2, 1.0, np.array([0x7FFF, -0x7F00, 5, -5], np.int16))
    contents["args"] = np.array([(0, 0, 0, 0)], DTYPES["mg_args"])
    assert check("linear_upd_q16", k, 1, contents)["wt"].tolist() == [0x7FFF, -0x7F00, 5, -5]


def test_weights_saturate() -> None:
    k = {"n": 1, "i": 1, "it": 1, "o": 2, "zx": 127, "af": 0}
    contents = given(1, 2, 1, 1e6, np.array([0, 0], np.int16))
    contents["dy"] = np.array([100, -100], np.int8)
    assert check("linear_upd_q16", k, 1, contents)["wt"].tolist() == [127 * 256 + 255, -127 * 256]
