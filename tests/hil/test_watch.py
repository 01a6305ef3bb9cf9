"""The watch net on a board: `pytest tests/hil` on those of pyproject.toml, `pytest tests/hil --mcugrad-board NAME` on any other.

The board trains to the reference's STATE, byte for byte, counts alike on every run, and needs the memory that was planned.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from helpers.motions import motions
from helpers.watch import LR, MODEL, SKIP, learned
from mcugrad.board import Kind
from mcugrad.hil.live import LiveBoard
from mcugrad.hil.step import TrainStep
from mcugrad.link import Session
from mcugrad.link.protocol import Region, TickUnit
from mcugrad.pipeline import Compiled
from mcugrad.report import report

ONE_TICK = 1
"""The tick step is about as long as one tick of the timer."""

ALIGNMENT = 16
"""The last bytes of ARENA may be there for alignment only."""


def test_a_stream_of_samples_leaves_the_reference_s_state(session: Session) -> None:
    compiled, samples, state = learned()
    session.load_plan(compiled.plan)
    untrained = session.read_state()
    list(session.train_stream(samples, SKIP))
    assert session.read_state() == state
    assert state != untrained
    assert session.stats().rx_overruns == 0


def test_step_by_step_it_is_the_reference(train_step: TrainStep) -> None:
    compiled, samples, _ = learned()
    for k, (data, label, _) in enumerate(samples[:2]):
        step = train_step(compiled, np.frombuffer(data, np.int8).reshape(128, 6), label, LR, skip=SKIP)
        assert step.equals_reference()
        assert (step.step, len(step.trace)) == (k, len(compiled.program.steps))


def test_a_model_file_learns_a_sample(train_step: TrainStep) -> None:
    x, labels = motions(1, 4)
    steps = [train_step(MODEL, x[0], int(labels[0]), LR, train="head,bias:4") for _ in range(2)]
    assert [s.difference for s in steps] == [None, None]
    assert steps[-1].loss < steps[0].loss


def test_the_same_instructions_on_every_run(board: LiveBoard, session: Session) -> None:
    if board.facts.unit(session.caps.tick_unit) is not TickUnit.INSTRUCTIONS:
        pytest.skip(f"{board.name} does not count instructions")
    compiled, samples, _ = learned()
    session.load_plan(compiled.plan)
    session.profile_on()
    runs = []
    for _ in range(2):
        session.reset()
        session.sample(samples[0][0])
        session.train(*samples[0][1:], SKIP)
        runs.append(np.frombuffer(session.read(Region.TRACE, 0, 4 * len(compiled.program.steps)), "<u4").tolist())
    assert runs[0] == runs[1]
    shortest = next(t for step, t in zip(compiled.program.steps, runs[0], strict=True) if step.kind.name == "tick")
    assert shortest <= ONE_TICK
    assert max(runs[0]) > 1_000


def test_memory_is_what_was_planned(board: LiveBoard, session: Session, compile_plan: Callable[..., Compiled]) -> None:
    compiled, samples, _ = learned()
    planned = report(compile_plan(MODEL, "all"), board.facts).ram
    session.load_plan(compiled.plan)
    list(session.train_stream(samples, 0.0))
    stats = session.stats()
    assert planned.arena - ALIGNMENT < stats.arena_touched_bytes <= planned.arena
    assert len(session.read_state()) == planned.state
    if board.facts.kind is not Kind.HOST:
        assert stats.static_ram_bytes == planned.runtime
        assert 64 < stats.stack_peak_bytes <= planned.stack * 4 // 5
