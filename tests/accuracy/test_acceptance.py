"""Whole training runs in the C runtime on this machine, with the accuracies that they must reach (slow).

Three tasks on the keyword net of MLPerf Tiny, batch 1, cosine to 0, trained: weights of the last two pointwise layers, biases of the last
two depthwise-separable blocks, head.

- leave one speaker out: a fresh 10-digit head on five speakers, 2 epochs at 0.03, tested on the sixth; mean of 6
- personalize: from there, 100 clips of the sixth speaker, 5 epochs at 0.03, tested on the speaker's other 400; mean of 12
- adapt: the 12-word net on 2,000 clips of half of the speakers, 1 epoch at 0.001, tested on the other half; mean of 4
"""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt
import pytest

from helpers.shared import shared
from mcugrad.native import NativeMachine
from mcugrad.pipeline import Compiled, compile_model
from mcugrad.training.recipe import Recipe

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

SCHEME = "head,bias:5,weights:conv_3,weights:conv_4"
SPEAKERS = range(6)

Data = tuple[npt.NDArray[np.int8], npt.NDArray[np.int64], npt.NDArray[np.int64]]


def _data(name: str) -> Data:
    with np.load(shared(f"datasets/{name}")) as z:
        return z["x"], z["y"].astype(np.int64), z["speaker"].astype(np.int64)


@functools.cache
def _model(classes: int | None) -> Compiled:
    return compile_model(shared("models/mlperf_tiny/kws_ref_model_int8.tflite"), SCHEME, classes)


def _train(machine: NativeMachine, data: Data, chosen: npt.NDArray[np.int64], recipe: Recipe) -> None:
    order = [int(chosen[i]) for i in recipe.order(len(chosen))]
    for k, i in enumerate(order):
        machine.train(data[0][i], int(data[1][i]), recipe.learning_rate(k, len(order)), 0.0)


def _accuracy(machine: NativeMachine, data: Data, chosen: npt.NDArray[np.int64]) -> float:
    """Percent right on the chosen samples."""
    return 100 * float(np.mean([int(machine.predict(data[0][i]).argmax()) == data[1][i] for i in chosen]))


@functools.cache
def _without(speaker: int) -> tuple[bytes, float]:
    """(STATE, accuracy on the speaker) after training on the other five."""
    data = _data("fsdd_spoken_digits_mfcc_int8.npz")
    machine = NativeMachine(_model(10).plan)
    _train(machine, data, np.flatnonzero(data[2] != speaker), Recipe(2, 0.03, "cosine", 0.0, speaker))
    return machine.state, _accuracy(machine, data, np.flatnonzero(data[2] == speaker))


def test_leave_one_speaker_out() -> None:
    found = [_without(s)[1] for s in SPEAKERS]
    print(f"leave one speaker out: {np.mean(found):.2f} % ({', '.join(f'{v:.1f}' for v in found)})")
    assert np.mean(found) >= 77.0, found


def test_personalize() -> None:
    data = _data("fsdd_spoken_digits_mfcc_int8.npz")
    before, after = [], []
    for speaker in SPEAKERS:
        for draw in (0, 1):
            rng = np.random.default_rng(100 * speaker + draw)
            mine = [rng.permutation(np.flatnonzero((data[2] == speaker) & (data[1] == digit))) for digit in range(10)]
            learn, test = np.concatenate([m[:10] for m in mine]), np.concatenate([m[10:] for m in mine])
            machine = NativeMachine(_model(10).plan)
            machine.state = _without(speaker)[0]
            before.append(_accuracy(machine, data, test))
            _train(machine, data, learn, Recipe(5, 0.03, "cosine", 0.0, draw))
            after.append(_accuracy(machine, data, test))
    print(f"personalize: {np.mean(before):.2f} -> {np.mean(after):.2f} %, worst {min(after):.2f}")
    assert np.mean(after) >= 95.5 and min(after) >= 88.0, after


def test_adapt() -> None:
    data = _data("speech_commands_v2_test_mfcc_int8.npz")
    speakers = np.unique(data[2][data[2] >= 0])
    before, after = [], []
    for split in range(4):
        rng = np.random.default_rng(split)
        half = rng.permutation(speakers)[: len(speakers) // 2]
        learn = rng.permutation(np.flatnonzero(np.isin(data[2], half)))[:2000]
        test = np.flatnonzero(~np.isin(data[2], half))
        machine = NativeMachine(_model(None).plan)
        before.append(_accuracy(machine, data, test))
        _train(machine, data, learn, Recipe(1, 0.001, "cosine", 0.0, split))
        after.append(_accuracy(machine, data, test))
    print(f"adapt: {np.mean(before):.2f} -> {np.mean(after):.2f} %")
    assert np.mean(after) >= 92.8, (before, after)
