"""Regression plans over the link: the target travels behind the sample; outputs that are longer than a reply."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from helpers.tiny_plan import patched
from helpers.tiny_regression import pairs, tiny_regression
from mcugrad.errors import McugradError
from mcugrad.link import Command, Session
from mcugrad.plan.opsdef import kinds
from mcugrad.ref import Machine

SKIP = 0.0
TRAIN = struct.pack("<Hxxff", 0, 0.05, SKIP)


def int8(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.int8)


@pytest.fixture
def loaded(session: Session) -> Session:
    session.load_plan(tiny_regression())
    return session


@pytest.mark.parametrize(("inputs", "outputs"), [(4, 100), (1028, 40), (1027, 3), (1, 2000)])
def test_a_stream_of_pairs_trains_like_the_reference(session: Session, inputs: int, outputs: int) -> None:
    """Frames end in the sample, at its last byte, and in the target."""
    plan, data = tiny_regression(inputs, outputs), pairs(20, inputs, outputs)
    machine = Machine(plan)
    session.load_plan(plan)
    replies = list(session.train_stream([(x + t, 0, 0.05) for x, t in data], SKIP))
    expected = [machine.train(int8(x), 0, 0.05, SKIP, int8(t)) for x, t in data]
    assert [r.loss for r in replies] == [e.loss for e in expected]
    assert session.read_state() == machine.state != machine.plan.init


def test_bytes_and_arrays_are_the_same(loaded: Session) -> None:
    (x, t), *_ = pairs(1)
    first = list(loaded.train_stream([(x + t, 0, 0.05)], SKIP))
    loaded.reset()
    assert [r.loss for r in loaded.train_stream([(int8(x + t), 0, 0.05)], SKIP)] == [r.loss for r in first]


def test_training_needs_the_target_and_predicting_does_not(loaded: Session) -> None:
    (x, t), *_ = pairs(1)
    before = loaded.read_state()
    for sent in (x, x + t[:-1]):
        loaded.sample(sent)
        loaded.predict()
        loaded.sample(sent)
        with pytest.raises(McugradError, match=f"MG_LINK_ERR_SAMPLE.*{len(sent)} bytes of the sample have come.*104"):
            loaded.train(0, 0.05, SKIP)
    assert loaded.read_state() == before
    loaded._call(Command.SAMPLE, struct.pack("<I", 103) + t[-1:])
    loaded._call(Command.TRAIN, TRAIN)
    assert loaded.read_state() != before


def test_a_target_that_is_too_long_is_refused(loaded: Session) -> None:
    (x, t), *_ = pairs(1)
    with pytest.raises(McugradError, match="MG_LINK_ERR_RANGE"):
        loaded.sample(x + t + b"\0")
    with pytest.raises(McugradError, match="MG_LINK_ERR_SAMPLE"):
        loaded.train(0, 0.05, SKIP)


def test_a_regression_plan_has_one_label(loaded: Session) -> None:
    (x, t), *_ = pairs(1)
    loaded.sample(x + t)
    with pytest.raises(McugradError, match="MG_ERR_LABEL"):
        loaded.train(1, 0.05, SKIP)


REFERENCE = struct.unpack_from("<I", tiny_regression(), 108)[0]
MSE_SX = 116 + kinds()["linear_fwd_s8"].size + 4
NAN, INFINITY, NEGATIVE, LARGE = 0x7FC00000, 0x7F800000, 0x80000001, 0x5F800001


@pytest.mark.parametrize(
    ("offset", "value", "name"),
    [
        pytest.param(108, REFERENCE & 0x3FFFFFFF, "MG_ERR_REF", id="the target in ARENA"),
        pytest.param(112, 1 << 20, "MG_ERR_REF", id="a target longer than IO"),
        pytest.param(112, 0, "MG_ERR_HEADER", id="a place for a target of no bytes"),
        *(pytest.param(MSE_SX, v, "MG_ERR_VALUE", id=f"a scale of bits {v:08x}") for v in (NAN, INFINITY, NEGATIVE, LARGE)),
    ],
)
def test_a_damaged_target_or_scale_is_refused(session: Session, offset: int, value: int, name: str) -> None:
    with pytest.raises(McugradError, match=name):
        session.load_plan(patched(tiny_regression(), offset, value))


def test_a_long_output_is_read_where_the_plan_puts_it(loaded: Session) -> None:
    machine = Machine(tiny_regression())
    for x, _ in pairs(3):
        loaded.sample(x)
        assert np.array_equal(loaded.predict().output, machine.predict(int8(x)).reshape(-1))


@pytest.mark.parametrize("outputs", [64, 65, 1500])
def test_a_stream_of_predictions_has_the_whole_outputs(session: Session, outputs: int) -> None:
    plan, data = tiny_regression(4, outputs), [x for x, _ in pairs(5)]
    machine = Machine(plan)
    session.load_plan(plan)
    for x, reply in zip(data, session.predict_stream(data), strict=True):
        assert np.array_equal(reply.output, machine.predict(int8(x)).reshape(-1))
    assert list(session.predict_stream([])) == []
