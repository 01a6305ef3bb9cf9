"""The rules that all error tensors share, at their edges, where random sweeps seldom stand: exponent, counter, clamp, wrap."""

from __future__ import annotations

import numpy as np
import pytest
from harness import Array, check
from strategies import Scalars

from mcugrad.ref.memory import DTYPES

EXACT = {"mult": 2**30, "skip_mult": 0, "skip_shift": 0, "lo": 0, "hi": 0, "has_skip": 0, "has_mask": 0, "has_bits": 0}
ADD = EXACT | {"sign": 1}


def exponent(r: int, following: int, count: int = 0) -> Array:
    return np.array([(r, following, count, 0)], DTYPES["mg_exponent"])


def after(peak: int, r: int, count: int) -> tuple[int, int, int, int]:
    """rx after an error whose largest element is ``peak`` before the clamp: add_bwd_x at scale 1, or 2 for peaks above 127."""
    double = peak > 127
    dy = np.array([3, -peak // 2 if double else peak], np.int8)
    given = {"dy": dy, "ry": exponent(r, 0), "rx": exponent(0, r, count)}
    a = check("add_bwd_x_s8", ADD | {"n": 2, "shift": 41 if double else 42}, 1, given)
    assert np.abs(a["dx"].astype(int)).max() == min(peak, 127)
    found: tuple[int, int, int, int] = a["rx"][0].tolist()
    return found


@pytest.mark.parametrize("r", [-16, -15, 0, 14, 15])
@pytest.mark.parametrize("count", [0, 14, 15])
class TestExponentRule:
    def test_above_127_it_rises_at_once(self, r: int, count: int) -> None:
        assert after(128, r, count) == (r, min(r + 1, 15), 0, 0)

    def test_from_64_to_127_it_stays(self, r: int, count: int) -> None:
        assert after(127, r, count) == after(64, r, count) == (r, r, 0, 0)

    def test_below_64_it_falls_at_the_sixteenth_sample(self, r: int, count: int) -> None:
        assert after(63, r, count) == ((r, max(r - 1, -16), 0, 0) if count == 15 else (r, r, count + 1, 0))


def test_a_masked_element_does_not_count() -> None:
    given = {"dy": np.array([1, 100], np.int8), "x": np.array([5, 9], np.int8), "ry": exponent(0, 0), "rx": exponent(0, 0, 15)}
    a = check("add_bwd_x_s8", ADD | {"n": 2, "shift": 42, "has_mask": 1, "lo": 4, "hi": 9}, 1, given)
    assert a["dx"].tolist() == [1, 0]
    assert a["rx"][0].tolist() == (0, -1, 0, 0)


def test_a_half_rounds_up() -> None:
    given = {"dy": np.array([1, -1, 3, -3], np.int8), "ry": exponent(0, 0), "rx": exponent(0, 0)}
    assert check("add_bwd_x_s8", ADD | {"n": 4, "shift": 43}, 1, given)["dx"].tolist() == [1, 0, 2, -1]


def test_exponents_shift_the_error() -> None:
    given = {"dy": np.array([8], np.int8), "ry": exponent(3, 0), "rx": exponent(0, 1)}
    assert check("add_bwd_x_s8", ADD | {"n": 1, "shift": 42}, 1, given)["dx"].tolist() == [32]


def test_the_skip_error_is_aligned_before_rounding() -> None:
    """dy = 1/2 and skip = 1/2 after rounding to nothing each would be 1 + 1; together they are 1."""
    given = {"dy": np.array([1], np.int8), "skip": np.array([1], np.int8)}
    given |= {"ry": exponent(0, 0), "rskip": exponent(0, 0), "rx": exponent(0, 0)}
    k = ADD | {"n": 1, "shift": 43, "has_skip": 1, "skip_mult": 2**30, "skip_shift": 18}
    assert check("add_bwd_x_s8", k, 1, given)["dx"].tolist() == [1]


@pytest.mark.parametrize("sign", [1, -1])
def test_the_sum_wraps(sign: int) -> None:
    """520 · 127 · 127 · 255 is below 2^31, with the limit of the skip error 2^29 it is above."""
    o = 520
    k: Scalars = EXACT | {"n": 1, "i": 1, "it": 0, "o": o, "ws": 1, "shift": 55, "has_skip": 1, "skip_mult": 2**31 - 1, "skip_shift": 0}
    given = {"dy": np.full(o, 127, np.int8), "wf": np.full(o, sign * 127, np.int8), "fold": np.full(o, 255, np.uint8)}
    given |= {"skip": np.array([sign * 127], np.int8), "ry": exponent(0, 0), "rskip": exponent(0, 0), "rx": exponent(0, 0)}
    a = check("linear_bwd_x_s8", k, 1, given)
    assert np.sign(a["dx"][0]) == -sign
