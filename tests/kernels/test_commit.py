"""Micro-batches in C and in the reference: steps are summed below the weight, a commit moves the sum into it."""

from __future__ import annotations

import numpy as np
import pytest
from harness import Array, check
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import Draw, Scalars, channels, sweep

from mcugrad.ref.memory import DTYPES

AF = 5


@st.composite
def weights(draw: Draw) -> Scalars:
    return {"n": draw(channels | st.integers(1, 2000)), "af": draw(st.integers(1, 7))}


@st.composite
def biases(draw: Draw) -> Scalars:
    bf = draw(st.integers(1, 16))
    return {"o": draw(channels), "bf": bf, "af": draw(st.integers(1, min(bf, 15)))}


def any_words(k: Scalars, rng: np.random.Generator) -> dict[str, Array]:
    """int32 of every size, the ends among them."""
    b = rng.integers(-(2**31), 2**31, k["o"]) >> rng.integers(0, 31, k["o"])
    b[rng.random(k["o"]) < 0.2] = rng.choice([-(2**31), 2**31 - 1])
    return {"b": b.astype(np.int32)}


test_commit_s16, test_commit_s16_more = sweep("commit_s16", weights())
test_commit_s32, test_commit_s32_more = sweep("commit_s32", biases(), any_words)


def commit_weight(w: int, a: int, af: int = AF) -> tuple[int, int]:
    """(weight, sum) after a commit."""
    wt = int(check("commit_s16", {"n": 1, "af": af}, 1, {"wt": np.array([256 * w + 128 + a], np.int16)})["wt"][0])
    return wt >> 8, (wt & 255) - 128


def commit_bias(v: int, a: int, bf: int, af: int) -> tuple[int, int]:
    half = 1 << bf >> 1
    b = int(check("commit_s32", {"o": 1, "bf": bf, "af": af}, 1, {"b": np.array([(v << bf) + half + a], np.int32)})["b"][0])
    return b >> bf, (b & (1 << bf) - 1) - half


@pytest.mark.parametrize(
    ("w", "a", "after"),
    [
        (3, 0, (3, 0)),
        (3, 15, (3, 15)),
        (3, 16, (4, -16)),
        (3, -16, (3, -16)),
        (3, -17, (2, 15)),
        (-1, 127, (3, -1)),
        (0, -128, (-4, 0)),
        (126, 127, (127, -1)),
        (-126, -128, (-127, 0)),
    ],
)
def test_whole_steps_go_into_the_weight_and_the_rest_stays(w: int, a: int, after: tuple[int, int]) -> None:
    """In units of 1/32; halves go up. The weight saturates at ±127."""
    assert commit_weight(w, a) == after


@given(st.integers(-127, 127), st.integers(-128, 127), st.integers(1, 7))
@settings(max_examples=100, deadline=None)
def test_a_commit_loses_nothing_where_no_weight_saturates(w: int, a: int, af: int) -> None:
    after, rest = commit_weight(w, a, af)
    assert abs(after) == 127 or after * 2**af + rest == w * 2**af + a
    assert -(2 ** (af - 1)) <= rest < 2 ** (af - 1)
    assert commit_weight(after, rest, af) == (after, rest)


@pytest.mark.parametrize(
    ("v", "a", "bf", "af", "after"),
    [
        (1000, 4095, 13, 5, (1128, -1)),
        (1000, -4096, 13, 5, (872, 0)),
        (-5, 7, 4, 1, (-1, -1)),
        (2**18 - 3, 4095, 13, 5, (2**18 - 1, -1)),
        (-(2**18) + 3, -4096, 13, 5, (-(2**18), 0)),
    ],
)
def test_a_bias_saturates_at_what_int32_holds(v: int, a: int, bf: int, af: int, after: tuple[int, int]) -> None:
    assert commit_bias(v, a, bf, af) == after


# ---- the sums ------------------------------------------------------------------------------------------------------------


def update(dw: list[int], step: float, wt: Array, kind: str, af: int) -> Array:
    """An update with these gradients (-128 … 127), each worth ``step`` of the weight or bias. lr · unit = 1/2."""
    o = len(dw)
    given = {
        "dy": np.array(dw, np.int8),
        "x": np.ones(1, np.int8),
        "ry": np.zeros(1, DTYPES["mg_exponent"]),
        "unit": np.full(1, 0.5, np.float32),
        "args": np.array([(1, 0, 0, 0)], DTYPES["mg_args"]),
        "rate": np.full(o, 2 * step, np.float32),
    }
    if kind == "bias_upd_s32":
        return np.asarray(check(kind, {"n": 1, "o": o, "bf": 13, "af": af}, 1, given | {"b": wt})["b"], np.int64)
    return np.asarray(check(kind, {"n": 1, "i": 1, "it": 1, "o": o, "af": af, "zx": 0}, 1, given | {"wt": wt})["wt"], np.int64)


def test_a_weight_stays_and_its_sum_saturates_at_four_steps() -> None:
    wt = np.array([256 * w + 128 for w in (0, 0, 9, -127, 127)], np.int16)
    after = update([1, -1, 127, 127, -127], 2.5, wt, "linear_upd_q16", AF)
    assert (after >> 8).tolist() == [0, 0, 9, -127, 127]
    assert ((after & 255) - 128).tolist() == [-80, 80, -128, -128, 127]
    twice = update([1, -1, -127, 0, 0], 2.5, after.astype(np.int16), "linear_upd_q16", AF)
    assert ((twice & 255) - 128).tolist() == [-128, 127, 127, -128, 127]


def test_a_bias_stays_and_its_sum_saturates_at_128_steps() -> None:
    b = np.array([(v << 13) + 4096 for v in (0, -7, 7, 100_000)], np.int32)
    after = update([1, -1, 127, -127], 2.5, b, "bias_upd_s32", AF)
    assert (after >> 13).tolist() == [0, -7, 7, 100_000]
    assert ((after & 8191) - 4096).tolist() == [-80, 80, -4096, 4095]


def test_steps_round_to_the_nearest_unit_of_the_sum_halves_up() -> None:
    """A step of 1/64 is half a unit: +1/64 of gradient takes a unit off, -1/64 nothing."""
    wt = np.full(3, 128, np.int16)
    after = update([1, -1, 3], 1 / 64, wt, "linear_upd_q16", AF)
    assert ((after & 255) - 128).tolist() == [-1, 0, -2]
