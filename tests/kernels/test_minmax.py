"""Minimum and maximum: C equals the reference, byte for byte; equal operands are frequent."""

from __future__ import annotations

import numpy as np
import pytest
from harness import Array, bytes_like, check
from hypothesis import strategies as st
from strategies import Draw, Scalars, epilogue, pair, sweep

from mcugrad.plan.opsdef import kinds
from mcugrad.ref.memory import DTYPES


@st.composite
def forward(draw: Draw) -> Scalars:
    return pair(draw) | {"max": draw(st.integers(0, 1))}


@st.composite
def error(draw: Draw) -> Scalars:
    k = epilogue(draw) | draw(forward())
    return k | {"second": draw(st.integers(0, 1)) if k["bp"] and k["bc"] else 0}


def operands(k: Scalars, rng: np.random.Generator) -> dict[str, Array]:
    """Sometimes b is a with a few changes: then most pairs are ties."""
    counts = kinds()["minmax_fwd_s8"].counts(k)
    a, b = bytes_like(rng, counts["a"]), bytes_like(rng, counts["b"])
    if rng.integers(2):
        b = np.where(rng.integers(8, size=b.size) == 0, b, a[: b.size]).astype(np.int8)
    return {"a": a, "b": b}


test_fwd_s8, test_fwd_s8_more = sweep("minmax_fwd_s8", forward(), operands)
test_bwd_x_s8, test_bwd_x_s8_more = sweep("minmax_bwd_x_s8", error(), operands)


@pytest.mark.parametrize("largest", [0, 1])
def test_a_tie_belongs_to_the_first_operand(largest: int) -> None:
    none = np.zeros(1, DTYPES["mg_exponent"])
    given = {"a": np.array([7, 1], np.int8), "b": np.array([7, 2], np.int8), "dy": np.array([100, 100], np.int8), "ry": none, "rx": none}
    k = {"mult": 2**30, "skip_mult": 0, "shift": 42, "skip_shift": 0, "lo": 0, "hi": 0, "has_skip": 0, "has_mask": 0, "has_bits": 0}
    k |= {"p": 1, "c": 2, "bp": 1, "bc": 1, "max": largest}
    first, second = ([100, 0], [0, 100]) if largest else ([100, 100], [0, 0])
    assert check("minmax_bwd_x_s8", k | {"second": 0}, 1, given)["dx"].tolist() == first
    assert check("minmax_bwd_x_s8", k | {"second": 1}, 1, given)["dx"].tolist() == second
