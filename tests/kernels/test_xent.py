"""Softmax cross-entropy: C equals the reference, byte for byte, and both are right."""

from __future__ import annotations

import math

import numpy as np
import pytest
from harness import Array, args, check, reals, words
from hypothesis import strategies as st
from strategies import Scalars, channels, sweep

from mcugrad.ref.memory import DTYPES, Arrays


def contents(k: Scalars, rng: np.random.Generator) -> dict[str, Array]:
    """Logits of a random spread: none, ordinary, or one far above the others; sometimes raw words and scales."""
    c = k["c"]
    given: dict[str, Array] = {"args": args(rng, int(rng.integers(c)))}
    if rng.integers(5) == 0:
        return given | {"x": words(rng, c), "scale": reals(rng, c)}
    spread = float(rng.choice([0, 0.1, 3, 30, 400]))
    logits = rng.uniform(-spread, spread, c)
    scale = np.exp2(rng.uniform(-14, -6, c)).astype(np.float32)
    return given | {"x": np.round(logits / scale).astype(np.int32), "scale": scale}


test_s32, test_s32_more = sweep(
    "xent_s32", st.fixed_dictionaries({"c": channels.filter(lambda c: c >= 2) | st.integers(34, 300)}), contents
)


def loss_of(logits: list[float], label: int, skip: float = 0.0) -> Arrays:
    """Run both executors on logits that are multiples of 1/256."""
    x = np.array([round(256 * v) for v in logits], np.int32)
    given = {"x": x, "scale": np.full(len(logits), 1 / 256, np.float32), "args": np.array([(0.01, skip, label, 0)], DTYPES["mg_args"])}
    return check("xent_s32", {"c": len(logits)}, 1, given)


@pytest.mark.parametrize("label", [0, 1, 2])
@pytest.mark.parametrize(
    "logits",
    [[-431.0, 279.0, 427.0], [-460.0, 0.0, 378.0], [5.0, 5.0, 5.0], [0.0, -90.0, 90.0], [1.0, 2.0, 3.0]],
    ids=["far", "range", "equal", "certain", "near"],
)
def test_values(logits: list[float], label: int) -> None:
    a = loss_of(logits, label)
    p = [math.exp(v - max(logits)) for v in logits]
    p = [v / sum(p) for v in p]
    loss, peak, argmax, skipped = a["result"][0].tolist()
    assert loss == pytest.approx(max(logits) - logits[label] + math.log(sum(math.exp(v - max(logits)) for v in logits)), rel=1e-5, abs=1e-6)
    assert argmax == logits.index(max(logits))
    g = [v - (i == label) for i, v in enumerate(p)]
    assert peak == pytest.approx(max(map(abs, g)), rel=1e-5, abs=1e-30)
    assert skipped == (peak == 0)
    if not skipped:
        assert a["unit"][0] == pytest.approx(peak / 127)
        assert np.abs(a["dy"]).max() == 127
        assert a["dy"] == pytest.approx([v / peak * 127 for v in g], abs=0.51)


def test_a_certain_sample_is_skipped() -> None:
    a = loss_of([10.0, 0.0, -1.0], 0, skip=0.1)
    assert a["result"]["skipped"][0] == 1
    assert a["unit"][0] == 0
    assert not a["dy"].any()


def test_an_uncertain_sample_is_not_skipped() -> None:
    a = loss_of([1.0, 0.0, -1.0], 1, skip=0.1)
    assert a["result"]["skipped"][0] == 0
    assert a["dy"][1] == -127
