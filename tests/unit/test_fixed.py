"""ref/fixed.py against exact rational arithmetic, and exp and log against the math library."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcugrad.ref import fixed

LO, HI = -(2**31), 2**31 - 1
HALF = Fraction(1, 2)

int32 = st.integers(LO, HI) | st.integers(-300, 300) | st.sampled_from([LO, LO + 1, -1, 0, 1, HI - 1, HI])
mults = st.integers(2**30, HI) | st.integers(0, HI) | st.sampled_from([0, 1, 2**30, HI])
floats = st.floats(0, 2.0**126, width=32) | st.floats(2.0**-40, 16, width=32)


def sat32(v: int) -> int:
    return min(max(v, LO), HI)


def exact_rdivpot(x: int, n: int) -> int:
    magnitude = math.floor(Fraction(abs(x), 2**n) + HALF)
    return magnitude if x >= 0 else -magnitude


def exact_srdhm(a: int, b: int) -> int:
    return min(math.floor(Fraction(a * b, 2**31) + HALF), HI)


def exact_scale(v: int, mult: int, n: int) -> int:
    if n > 62:
        return 0
    if n >= 1:
        return sat32(math.floor(Fraction(v * mult, 2**n) + HALF))
    return sat32(sat32(v * mult) * 2 ** min(-n, 31))


def exact_mix(x: int) -> int:
    x ^= x >> 16
    x = x * 0x7FEB352D % 2**32
    x ^= x >> 15
    x = x * 0x846CA68B % 2**32
    return x ^ x >> 16


@pytest.mark.parametrize(
    ("x", "mult", "shift", "y"),
    [(7984, 1583594044, -9, 12), (5803, 1693298185, -6, 72)],
    ids=["11.499-becomes-12", "71.49-becomes-72"],
)
def test_requant_rounds_twice_or_once(x: int, mult: int, shift: int, y: int) -> None:
    """tensorflow#25087: with one rounding it is one less."""
    assert int(fixed.requant(x, mult, shift)) == int(fixed.requant(x, mult, shift, 0)) == y
    assert int(fixed.requant(x, mult, shift, 1)) == y - 1
    assert math.floor(Fraction(x * mult, 2 ** (31 - shift)) + HALF) == y - 1


def test_the_two_roundings_differ_in_half_a_percent() -> None:
    rng = np.random.default_rng(26)
    x, mult, shift = rng.integers(-60000, 60001, 200_000), rng.integers(2**30, 2**31, 200_000), rng.integers(-10, -4, 200_000)
    differ = fixed.requant(x, mult, shift, 0) != fixed.requant(x, mult, shift, 1)
    assert 0.003 < differ.mean() < 0.01


@given(int32, int32)
def test_srdhm(a: int, b: int) -> None:
    assert int(fixed.srdhm(a, b)) == exact_srdhm(a, b)


def test_srdhm_of_the_two_lowest_saturates() -> None:
    assert int(fixed.srdhm(LO, LO)) == HI


@given(int32, st.integers(0, 31))
def test_rdivpot(x: int, n: int) -> None:
    assert int(fixed.rdivpot(x, n)) == exact_rdivpot(x, n)


@given(st.integers(-(2**20), 2**20) | int32, mults, st.integers(-31, 30))
def test_requant(acc: int, mult: int, shift: int) -> None:
    wrapped = (acc * 2 ** max(shift, 0) + 2**31) % 2**32 - 2**31
    assert int(fixed.requant(acc, mult, shift)) == exact_rdivpot(exact_srdhm(wrapped, mult), max(-shift, 0))


@given(st.integers(-(2**20), 2**20) | int32, mults, st.integers(-31, 30))
def test_requant_with_one_rounding(acc: int, mult: int, shift: int) -> None:
    assert int(fixed.requant(acc, mult, shift, 1)) == sat32(math.floor(Fraction(acc * mult, 2 ** (31 - shift)) + HALF))


@given(int32, mults, st.integers(-40, 70) | st.sampled_from([-(2**15), -32, -31, 0, 1, 62, 63, 2**15]))
def test_scale(v: int, mult: int, n: int) -> None:
    assert int(fixed.scale(v, mult, n)) == exact_scale(v, mult, n)


@given(floats)
def test_split_is_exact(f: float) -> None:
    mult, n = (int(v) for v in fixed.split(np.float32(f)))
    if f < 2.0**-126:
        assert (mult, n) == (0, 0)
    else:
        assert 2**30 <= mult < 2**31
        assert Fraction(mult) / Fraction(2) ** n == Fraction(f)


@pytest.mark.parametrize("f", [0.0, -0.0, 1e-40, -1.0, math.inf, -math.inf, math.nan])
def test_split_of_what_is_no_positive_normal_number(f: float) -> None:
    assert [int(v) for v in fixed.split(np.float32(f))] == [0, 0]


@given(st.integers(0, 2**32 - 1))
def test_mix(x: int) -> None:
    assert int(fixed.mix(x)) == exact_mix(x)


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), st.integers(0, 65535))
def test_draw(seed: int, tick: int, stream: int) -> None:
    key = exact_mix(exact_mix(exact_mix(seed ^ 0x9E3779B9) ^ tick) ^ (stream << 16 ^ 0x85EBCA6B))
    assert fixed.draw(seed, tick, stream, 5).tolist() == [exact_mix((key + k) % 2**32) for k in range(5)]


def test_draws_are_uniform() -> None:
    u = np.concatenate([fixed.draw(1, tick, 3, 1000) for tick in range(100)])
    counts = np.bincount(u >> 28, minlength=16)
    assert ((counts - 6250) ** 2 / 6250).sum() < 45  # chi-square of 15 degrees of freedom: 45 is passed once in 13,000


def ulps(got: np.ndarray, want: np.ndarray) -> float:
    return float((np.abs(got.astype(np.float64) - want) / np.spacing(want.astype(np.float32)).astype(np.float64)).max())


def test_exp() -> None:
    x = np.concatenate((np.linspace(-87, 0, 200_001), -np.exp2(np.linspace(-40, 6.4, 100_001)))).astype(np.float32)
    got = fixed.exp(x)
    assert got.dtype == np.float32
    assert ulps(got, np.exp(x.astype(np.float64))) <= 2


def test_exp_at_the_ends() -> None:
    below = np.nextafter(np.float32(-87), np.float32(-88))
    assert fixed.exp(np.array([0, -0.0, below, -3e38], np.float32)).tolist() == [1, 1, 0, 0]
    assert fixed.exp(np.float32(-87)) == pytest.approx(math.exp(-87), rel=1e-6)


def test_log() -> None:
    x = np.concatenate((np.linspace(1, 3, 200_001), np.exp2(np.linspace(0, 23.999, 200_001)))).astype(np.float32)
    got, want = fixed.log(x), np.log(x.astype(np.float64))
    assert got.dtype == np.float32
    assert got[x == 1].tolist() == [0] * int((x == 1).sum())
    assert ulps(got[x > 1], want[x > 1]) <= 2


def test_trained_weight_of_two_bytes_is_the_high_one() -> None:
    plane = np.array([0x7F80, -0x7F01, 0x00FF, -1], "<i2").view(np.int8)
    assert fixed.trained(plane, 2).tolist() == [0x7F, -0x80, 0, -1]
    assert fixed.trained(np.array([-128, 127], np.int8), 1).tolist() == [-128, 127]


def test_bias_is_the_floor() -> None:
    assert fixed.bias(np.array([-1, 255, 256, -257], np.int32), 8).tolist() == [-1, 0, 1, -2]
