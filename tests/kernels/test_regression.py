"""A plan with a regression target: the reference and the C library take it alike, refuse it alike, and learn it alike."""

from __future__ import annotations

import re

import numpy as np
import pytest

from helpers.tiny_plan import tiny_plan
from mcugrad.errors import DataError
from mcugrad.native import NativeMachine
from mcugrad.plan.codec import Interface, Region, encode, ref
from mcugrad.plan.opsdef import kinds
from mcugrad.ref import Machine
from mcugrad.ref.fixed import Array

Either = Machine | NativeMachine
BOTH = pytest.mark.parametrize("machine", [Machine, NativeMachine])
INPUTS, OUTPUTS = 8, 3
Y_SCALE, Y_ZERO = 0.25, 7


def plan() -> bytes:
    """One linear layer of 8 inputs and 3 outputs, and the mean squared error of its int32 sums."""
    kind, (x, target, args, result, y) = kinds(), (ref(Region.IO, at) for at in (0, 8, 12, 24, 40))
    sums, dy, unit, ry = (ref(Region.ARENA, at) for at in (0, 12, 16, 20))
    wt, b, rng = (ref(Region.STATE, at) for at in (0, 48, 60))
    scale, rate, bias_rate, rq = (ref(Region.CONST, at) for at in (0, 12, 24, 36))
    sizes = {"n": 1, "i": INPUTS, "it": INPUTS, "o": OUTPUTS}
    learn = {"dy": dy, "ry": ry, "unit": unit, "args": args}
    forward = kind["linear_fwd_s32"].pack({**sizes, "ws": 2, "bf": 8, "zx": -3, "x": x, "wf": 0, "wt": wt, "b": b, "y": sums})
    codes = {"n": 1, "o": OUTPUTS, "zy": Y_ZERO, "lo": -128, "hi": 127, "rounding": 1, "x": sums, "rq": rq, "y": y}
    loss = {"c": OUTPUTS, "st": Y_SCALE, "zt": Y_ZERO, "x": sums, "scale": scale, "target": target, "args": args}
    loss |= {"dy": dy, "unit": unit, "ry": ry, "result": result}
    backward = [
        kind["linear_upd_q16"].pack({**sizes, **learn, "af": 0, "zx": -3, "x": x, "rate": rate, "wt": wt}),
        kind["bias_upd_s32"].pack({"n": 1, "o": OUTPUTS, "bf": 8, "af": 0, **learn, "rate": bias_rate, "b": b}),
        kind["tick"].pack({"rng": rng}),
    ]
    floats = np.repeat(np.array([0.004, 0.225, 250.0], "<f4"), OUTPUTS).tobytes()
    const = floats + np.array([(1 << 30, -5)] * OUTPUTS, "<i4").tobytes()
    interface = Interface(
        arena_bytes=24,
        state_bytes=68,
        io_bytes=44,
        sample=x,
        sample_bytes=INPUTS,
        args=args,
        result=result,
        output=y,
        output_bytes=OUTPUTS,
        classes=1,
        rng=rng,
        target=target,
        target_bytes=OUTPUTS,
        model_hash=0,
    )
    segments = [[forward], [kind["requant_fwd_s8"].pack(codes)], [kind["mse_s32"].pack(loss)], backward, []]
    return encode(interface, segments, const, np.full(68, 0, np.uint8).tobytes())


def sample(seed: int) -> tuple[Array, Array]:
    """Eight inputs, and a linear function of them as the target."""
    x = np.random.default_rng(seed).integers(-128, 128, INPUTS)
    return x.astype(np.int8), np.array([x[0] // 4, -x[1] // 8, 20], np.int8)


def test_they_learn_alike() -> None:
    a, b = Machine(plan()), NativeMachine(plan())
    losses = []
    for step in range(300):
        x, target = sample(step % 20)
        result = a.train(x, 0, 0.01, skip=0.0, target=target)
        assert result == b.train(x, 0, 0.01, skip=0.0, target=target)
        assert a.state == b.state, f"step {step}"
        losses.append(result.loss)
    assert sum(losses[-20:]) < 0.1 * sum(losses[:20])
    x, target = sample(3)
    y = a.predict(x)
    assert np.array_equal(y, b.predict(x))
    assert np.abs(y.astype(int) - target).max() <= 8


@BOTH
@pytest.mark.parametrize(
    ("target", "words"),
    [
        (None, "needs a target of 3 int8 values"),
        (np.zeros(2, np.int8), "a target is 2 values of int8, the plan takes 3"),
        (np.zeros(3, np.float32), "3 values of float32"),
    ],
)
def test_a_wrong_target_is_refused(machine: type[Either], target: Array | None, words: str) -> None:
    m = machine(plan())
    with pytest.raises(DataError, match=re.escape(words)):
        m.train(sample(1)[0], 0, 0.1, target=target)
    assert m.state == m.plan.init


@BOTH
def test_a_target_for_a_plan_with_labels_is_refused(machine: type[Either]) -> None:
    m = machine(tiny_plan())
    with pytest.raises(DataError, match="takes a label and no target"):
        m.train(np.zeros(4, np.int8), 0, 0.1, target=np.zeros(3, np.int8))


@BOTH
def test_a_regression_plan_has_one_label(machine: type[Either]) -> None:
    with pytest.raises(DataError, match="label 1"):
        machine(plan()).train(sample(1)[0], 1, 0.1, target=sample(1)[1])
