"""The watch net, all of it trained on a few made-up motions: what every board must come to, byte for byte."""

from __future__ import annotations

import functools

import numpy as np

from helpers.motions import motions
from mcugrad.paths import root
from mcugrad.pipeline import Compiled, compile_model
from mcugrad.ref.run import Machine

MODEL = root() / "examples" / "watch" / "watch_base.tflite"
SAMPLES, LR, SKIP = 5, 0.05, 0.1


@functools.cache
def learned() -> tuple[Compiled, tuple[tuple[bytes, int, float], ...], bytes]:
    """The plan, the samples as the link takes them, and STATE after the reference has learned them."""
    compiled = compile_model(MODEL, "all")
    x, labels = motions(SAMPLES, 3)
    int8 = np.round(x * 127).astype(np.int8).reshape(SAMPLES, -1)
    machine = Machine(compiled.plan)
    for sample, label in zip(int8, labels, strict=True):
        machine.train(sample, int(label), LR, SKIP)
    return compiled, tuple((s.tobytes(), int(label), LR) for s, label in zip(int8, labels, strict=True)), machine.state
