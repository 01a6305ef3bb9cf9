"""Whole training runs in the C runtime on this machine, with the accuracies that they must reach (slow).

Three tasks on the keyword net of MLPerf Tiny, batch 1, cosine to 0, trained: weights of the last two pointwise layers, biases of the last
two depthwise-separable blocks, head.

- leave one speaker out: a fresh 10-digit head on five speakers, 2 epochs at 0.03, tested on the sixth; mean of 6
- personalize: from there, 100 clips of the sixth speaker, 5 epochs at 0.03, tested on the speaker's other 400; mean of 12
- adapt: the 12-word net on 2,000 clips of half of the speakers, 1 epoch at 0.001, tested on the other half; mean of 4

And one on MCUNet-5FPS, 128×128 pixels, batch 1, cosine from 0.003 to 0:

- clothes: a fresh 10-class head on 1,000 photographs, 5 epochs, tested on 372; mean of 3 orders, with the 49 KB scheme (biases of the last
  18 convolutions, slices of three), the 99 KB scheme, and the head alone
"""

from __future__ import annotations

import functools
import io
import zipfile

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


CLOTHES = {
    "head": "head",
    "49 KB": "head,bias:19,weights:24:1/4,weights:27:1/2,weights:30:1/2",
    "99 KB": "head,bias:21,weights:21,weights:24,weights:27,weights:30,weights:36:1/8,weights:39:1/4",
}


@functools.cache
def _photographs(part: str) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.int64]]:
    """(N, 128, 128, 3) int8 at the scale of the model's input, 1/127.5 around 0; labels in the order of the class names."""
    image = pytest.importorskip("PIL.Image", reason="needs pillow to read photographs: pip install pillow")
    with zipfile.ZipFile(shared("datasets/clothing128_jpeg.zip")) as z:
        names = sorted(n for n in z.namelist() if n.startswith(f"{part}/") and n.endswith(".jpg"))
        classes = sorted({n.split("/")[1] for n in names})
        pixels = [np.asarray(image.open(io.BytesIO(z.read(n))).convert("RGB")) for n in names]
    return (np.stack(pixels).astype(np.int16) - 128).astype(np.int8), np.array([classes.index(n.split("/")[1]) for n in names])


@functools.cache
def _clothes(scheme: str, seeds: int) -> float:
    x, y = _photographs("train")
    test_x, test_y = _photographs("test")
    compiled = compile_model(shared("models/tiny_training/mcunet-5fps_int8.tflite"), CLOTHES[scheme], 10)
    found = []
    for seed in range(seeds):
        machine = NativeMachine(compiled.plan)
        _train(machine, (x, y, y), np.arange(len(y)), Recipe(5, 0.003, "cosine", 0.0, seed))
        found.append(_accuracy(machine, (test_x, test_y, test_y), np.arange(len(test_y))))
    print(f"clothes, {scheme}: {np.mean(found):.2f} % ({', '.join(f'{v:.2f}' for v in found)})")
    return float(np.mean(found))


def test_clothes_49_kb() -> None:
    assert _clothes("49 KB", 3) >= max(83.0, _clothes("head", 1) + 3)


def test_clothes_99_kb() -> None:
    assert _clothes("99 KB", 3) >= 84.5
