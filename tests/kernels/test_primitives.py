"""fixed.h equals ref/fixed.py, primitive by primitive."""

from __future__ import annotations

import ctypes as c
from collections.abc import Callable

import numpy as np
import pytest

from mcugrad.native import library
from mcugrad.ref import fixed
from mcugrad.ref.fixed import Array

COUNT = 4000
LO, HI = -(2**31), 2**31 - 1
ENDS = [LO, LO + 1, -1, 0, 1, HI - 1, HI]


def c_function(name: str, result: type, *arguments: type) -> Callable[..., float]:
    """A function of the host library. The prototype is made here, so that nobody else's changes."""
    return c.CFUNCTYPE(result, *arguments)((name, library()))


def int32(rng: np.random.Generator) -> Array:
    """Of every magnitude, with the ends."""
    values = rng.integers(LO, HI + 1, COUNT) >> rng.integers(0, 31, COUNT)
    return np.where(rng.random(COUNT) < 0.1, rng.choice(ENDS, COUNT), values)


def floats(rng: np.random.Generator) -> Array:
    """Any bits at all: infinities, NaN and subnormals among them."""
    return rng.integers(0, 2**32, COUNT, dtype=np.uint32).view(np.float32)


def test_srdhm() -> None:
    rng = np.random.default_rng(1)
    a, b, f = int32(rng), int32(rng), c_function("mg_host_srdhm", c.c_int32, c.c_int32, c.c_int32)
    assert [f(int(x), int(y)) for x, y in zip(a, b, strict=True)] == fixed.srdhm(a, b).tolist()


def test_rdivpot() -> None:
    rng = np.random.default_rng(2)
    x, n, f = int32(rng), rng.integers(0, 32, COUNT), c_function("mg_host_rdivpot", c.c_int32, c.c_int32, c.c_int32)
    assert [f(int(v), int(k)) for v, k in zip(x, n, strict=True)] == fixed.rdivpot(x, n).tolist()


REQUANT = c.c_int32, c.c_int32, c.c_int32, c.c_int32, c.c_int32


@pytest.mark.parametrize("rounding", [0, 1])
def test_requant(rounding: int) -> None:
    rng = np.random.default_rng(3)
    acc, mult, shift = int32(rng), np.maximum(int32(rng), 0), rng.integers(-31, 31, COUNT)
    f = c_function("mg_host_requant", *REQUANT)
    got = [f(int(a), int(m), int(s), rounding) for a, m, s in zip(acc, mult, shift, strict=True)]
    assert got == fixed.requant(acc, mult, shift, rounding).tolist()


@pytest.mark.parametrize("rounding", [0, 1])
@pytest.mark.parametrize(("x", "mult", "shift", "y"), [(7984, 1583594044, -9, 12), (5803, 1693298185, -6, 72)])
def test_requant_rounds_twice_or_once(rounding: int, x: int, mult: int, shift: int, y: int) -> None:
    """tensorflow#25087."""
    assert c_function("mg_host_requant", *REQUANT)(x, mult, shift, rounding) == y - rounding


def test_scale() -> None:
    rng = np.random.default_rng(4)
    v, mult = int32(rng), np.maximum(int32(rng), 0)
    n = np.where(rng.random(COUNT) < 0.1, rng.choice(ENDS, COUNT), rng.integers(-40, 70, COUNT))
    f = c_function("mg_host_scale", c.c_int32, c.c_int32, c.c_int32, c.c_int32)
    assert [f(int(a), int(m), int(k)) for a, m, k in zip(v, mult, n, strict=True)] == fixed.scale(v, mult, n).tolist()


def test_split() -> None:
    values = floats(np.random.default_rng(5))
    f = c_function("mg_host_split", c.c_int, c.c_float, c.POINTER(c.c_int32), c.POINTER(c.c_int32))
    mult, n = c.c_int32(), c.c_int32()
    got = []
    for v in values:
        f(float(v), c.byref(mult), c.byref(n))
        got.append((mult.value, n.value))
    assert got == list(zip(*(part.tolist() for part in fixed.split(values)), strict=True))


def test_exp() -> None:
    rng = np.random.default_rng(6)
    x = np.concatenate((-rng.uniform(0, 90, COUNT), -np.exp2(rng.uniform(-40, 10, COUNT)), [0, -87, -3e38])).astype(np.float32)
    f = c_function("mg_host_exp", c.c_float, c.c_float)
    assert np.array_equal(np.array([f(float(v)) for v in x], np.float32).view(np.uint32), fixed.exp(x).view(np.uint32))


def test_log() -> None:
    rng = np.random.default_rng(7)
    x = np.concatenate((rng.uniform(1, 3, COUNT), np.exp2(rng.uniform(0, 23.99, COUNT)), [1, 2, 1.4142135, 1.4142137])).astype(np.float32)
    f = c_function("mg_host_log", c.c_float, c.c_float)
    assert np.array_equal(np.array([f(float(v)) for v in x], np.float32).view(np.uint32), fixed.log(x).view(np.uint32))


@pytest.mark.parametrize(("seed", "tick", "stream"), [(0, 0, 0), (1, 2, 3), (2**32 - 1, 2**32 - 1, 65535), (0x9E3779B9, 7, 40000)])
def test_draw(seed: int, tick: int, stream: int) -> None:
    f = c_function("mg_host_draw", c.c_uint32, c.c_uint32, c.c_uint32, c.c_uint32, c.c_uint32)
    assert [f(seed, tick, stream, k) for k in range(300)] == fixed.draw(seed, tick, stream, 300).tolist()
