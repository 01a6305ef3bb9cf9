"""train_step and compile_plan, without pytest's part: what they take, what they keep, what they refuse."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from helpers.motions import motions
from helpers.tiny_graphs import one_linear
from helpers.watch import MODEL
from mcugrad.autodiff import Loss
from mcugrad.board import find_board, open_board
from mcugrad.errors import DataError, FitError, ModelError
from mcugrad.hil.plans import Plans
from mcugrad.hil.step import TrainStep
from mcugrad.link import Session
from mcugrad.pipeline import compile_graph

SAMPLES, LABELS = motions(2, 6)
LR = 0.1


@pytest.fixture(scope="module")
def plans() -> Plans:
    return Plans(find_board("host"))


@pytest.fixture
def session() -> Iterator[Session]:
    with open_board("host") as (_, line):
        opened = Session(line, deadline_s=5.0)
        opened.hello()
        yield opened


@pytest.fixture
def train_step(session: Session, plans: Plans) -> TrainStep:
    return TrainStep("host", session, lambda model, *rest: plans.compile(Path(model), *rest))


def test_int8_codes_and_the_values_they_stand_for_are_the_same_sample(train_step: TrainStep, plans: Plans) -> None:
    compiled = plans.compile(MODEL)
    codes = np.clip(np.round(SAMPLES[0] * 128), -128, 127).astype(np.int8)
    by_value = train_step(compiled, SAMPLES[0], 1, LR)
    train_step(plans.compile(MODEL, "bias:2"), SAMPLES[1], 1, LR)
    assert train_step(compiled, codes, 1, LR).state == by_value.state


def test_another_plan_and_a_plan_loaded_in_between_begin_afresh(train_step: TrainStep, session: Session, plans: Plans) -> None:
    first = train_step(MODEL, SAMPLES[0], 1, LR)
    assert train_step(MODEL, SAMPLES[0], 1, LR).step == 1
    assert train_step(MODEL, SAMPLES[0], 1, LR, train="bias:2").step == 0
    assert train_step(MODEL, SAMPLES[0], 1, LR).state == first.state
    session.load_plan(plans.compile(MODEL).plan)
    assert train_step(MODEL, SAMPLES[0], 1, LR).state == first.state


def test_what_the_test_does_to_state_itself_is_a_difference(train_step: TrainStep, session: Session) -> None:
    train_step(MODEL, SAMPLES[0], 1, LR)
    session.reset()
    step = train_step(MODEL, SAMPLES[0], 1, LR)
    assert not step.equals_reference()
    assert step.difference is not None and "first differs in step" in repr(step) and step.difference.what in repr(step)
    assert len(repr(step)) < 240, "pytest cuts off what is longer"


def test_without_room_for_a_trace_loss_and_state_are_compared(
    train_step: TrainStep, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise FitError("no room for the trace")

    monkeypatch.setattr(session, "trace_on", refuse)
    step = train_step(MODEL, SAMPLES[0], 1, LR)
    assert step.trace == () and step.equals_reference()
    session.reset()
    step = train_step(MODEL, SAMPLES[0], 1, LR)
    assert step.difference is not None and step.difference.what.startswith("STATE byte")


def test_a_loss_that_differs_is_a_difference(train_step: TrainStep, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    really = session.train
    monkeypatch.setattr(session, "train", lambda *arguments: replace(really(*arguments), loss=0.5))
    step = train_step(MODEL, SAMPLES[0], 1, LR)
    assert step.difference is not None and (step.difference.what, step.difference.board) == ("loss", "0.5")


def test_a_regression_takes_a_target(train_step: TrainStep) -> None:
    compiled = compile_graph(one_linear(), "all", loss=Loss.MSE)
    outputs = compiled.model.tensors[compiled.model.output].size
    target = np.full(outputs, 0.5, np.float32)
    steps = [train_step(compiled, np.array([1.0, -1.0, 0.5, 2.0]), lr=0.01, target=target) for _ in range(4)]
    assert all(s.equals_reference() for s in steps)
    assert steps[-1].loss < steps[0].loss


@pytest.mark.parametrize(
    ("sample", "label", "said"),
    [
        (SAMPLES[0][:5], 1, r"x has samples of shape \(5, 6\), the model's input is \(128, 1, 6\)"),
        (SAMPLES[0], 7, "label 7 is not in 0 … 6"),
        (SAMPLES[0] * np.nan, 1, "NaN"),
    ],
)
def test_a_wrong_sample_is_refused_here(train_step: TrainStep, sample: object, label: int, said: str) -> None:
    with pytest.raises(DataError, match=said):
        train_step(MODEL, sample, label, LR)  # type: ignore[arg-type]
    assert train_step(MODEL, SAMPLES[0], 1, LR).equals_reference()


def test_a_plan_is_compiled_once_and_again_when_the_file_has_changed(plans: Plans, tmp_path: Path) -> None:
    model = tmp_path / "model.tflite"
    shutil.copy(MODEL, model)
    first = plans.compile(model)
    assert plans.compile(model) is first
    assert plans.compile(model, "bias:2") is not first
    os.utime(model, ns=(1, 1))
    assert plans.compile(model) is not first


def test_a_plan_that_the_board_has_no_room_for_is_refused_by_numbers() -> None:
    host = find_board("host")
    small = Plans(replace(host, ram_bytes=host.stack_bytes + host.rx_ring_bytes + 9_000))
    with pytest.raises(FitError, match=r"plan needs .* bytes of RAM"):
        small.compile(MODEL, "all")


def test_a_model_that_is_not_there_is_refused(plans: Plans, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"none\.tflite"):
        plans.compile(tmp_path / "none.tflite")
