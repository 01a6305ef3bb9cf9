"""Binary cross-entropy: C equals the reference, byte for byte, and both are right."""

from __future__ import annotations

import math

import numpy as np
import pytest
from harness import Array, args, check, reals, words
from hypothesis import strategies as st
from strategies import Scalars, sweep

from mcugrad.ref.memory import DTYPES


def contents(_: Scalars, rng: np.random.Generator) -> dict[str, Array]:
    """A logit that is 0, ordinary or extreme; labels above 1 count as 1."""
    given: dict[str, Array] = {"args": args(rng, int(rng.choice([0, 1, 65535])))}
    if rng.integers(3) == 0:
        return given | {"x": words(rng, 1), "scale": reals(rng, 1)}
    scale = np.exp2(rng.uniform(-14, -6, 1)).astype(np.float32)
    spread = float(rng.choice([0, 0.1, 3, 30, 400]))
    return given | {"x": np.round(rng.uniform(-spread, spread, 1) / scale).astype(np.int32), "scale": scale}


test_s32, test_s32_more = sweep("bce_s32", st.just({}), contents)


@pytest.mark.parametrize("label", [0, 1])
@pytest.mark.parametrize("logit", [-460.0, -20.0, -1.0, 0.0, 0.5, 3.0, 378.0])
def test_values(logit: float, label: int) -> None:
    given = {"x": np.array([round(256 * logit)], np.int32), "scale": np.full(1, 1 / 256, np.float32)}
    a = check("bce_s32", {}, 1, given | {"args": np.array([(0.01, 0, label, 0)], DTYPES["mg_args"])})
    loss, peak, argmax, skipped = a["result"][0].tolist()
    g = (1 / (1 + math.exp(-logit)) if logit > -700 else 0.0) - label
    sign = 1 if label == 0 else -1
    assert loss == pytest.approx(max(sign * logit, 0) + math.log1p(math.exp(-abs(logit))), rel=1e-5, abs=1e-6)
    assert peak == pytest.approx(abs(g), rel=1e-5, abs=1e-7)
    assert argmax == (logit > 0)
    assert skipped == (peak == 0)
    if not skipped:
        assert a["unit"][0] == pytest.approx(peak / 127)
        assert a["dy"].tolist() == [127 if g > 0 else -127]


def test_a_certain_sample_is_skipped() -> None:
    given = {"x": np.array([10], np.int32), "scale": np.ones(1, np.float32), "args": np.array([(0.01, 0.1, 1, 0)], DTYPES["mg_args"])}
    a = check("bce_s32", {}, 1, given)
    assert a["result"]["skipped"][0] == 1
    assert a["unit"][0] == 0
    assert not a["dy"].any()
