"""A net that is trained in micro-batches learns nearly as well as with an update after every sample (slow).

Two of the six speakers of test_acceptance.py, left out. A batch of 8 takes an eighth of the steps, so it has ten times the rate; it
learns less of the same samples (in float too). The sums themselves must cost nothing that one would see.
"""

from __future__ import annotations

import numpy as np
import pytest

from accuracy.test_acceptance import SCHEME, _accuracy, _data, _without
from helpers.shared import shared
from mcugrad.lower import Options
from mcugrad.native import NativeMachine
from mcugrad.pipeline import compile_model
from mcugrad.training.recipe import Recipe

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

SPEAKERS = (0, 3)
BATCH = 8


def in_batches(speaker: int) -> float:
    """Accuracy on a speaker after training on the other five."""
    data = _data("fsdd_spoken_digits_mfcc_int8.npz")
    compiled = compile_model(shared("models/mlperf_tiny/kws_ref_model_int8.tflite"), SCHEME, 10, Options(batch=BATCH))
    machine = NativeMachine(compiled.plan)
    chosen = np.flatnonzero(data[2] != speaker)
    recipe = Recipe(2, 0.3, "cosine", 0.0, speaker, BATCH)
    order, commits = [int(chosen[i]) for i in recipe.order(len(chosen))], recipe.commits(len(chosen))
    for k, i in enumerate(order):
        machine.train(data[0][i], int(data[1][i]), recipe.learning_rate(k, len(order)), 0.0)
        if k in commits:
            machine.commit()
    return _accuracy(machine, data, np.flatnonzero(data[2] == speaker))


def test_batches_of_eight_learn() -> None:
    at_once, batch = ([learn(s) for s in SPEAKERS] for learn in (lambda s: _without(s)[1], in_batches))
    print(f"leave one speaker out: {at_once} with every sample, {batch} with every {BATCH}")
    assert np.mean(batch) >= np.mean(at_once) - 4.5 and min(batch) > 60, (at_once, batch)
