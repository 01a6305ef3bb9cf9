"""Every board that runs on this machine trains the watch net to the reference's STATE, byte for byte, and counts alike on every run."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from e2e.conftest import MODEL
from helpers.motions import motions
from mcugrad.board import Kind, load_boards, open_board
from mcugrad.link import Session
from mcugrad.link.protocol import Region
from mcugrad.pipeline import Compiled, compile_model
from mcugrad.ref.run import Machine

pytestmark = pytest.mark.qemu

BOARDS = load_boards()
EMULATED = [name for name, board in BOARDS.items() if board.kind is Kind.QEMU]
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


def test_there_is_a_board_for_every_core() -> None:
    assert {BOARDS[name].core for name in EMULATED} == {"cortex-m3", "cortex-m4", "cortex-m7", "cortex-m33", "cortex-m55"}


@pytest.mark.parametrize("name", ["host", *EMULATED])
def test_the_same_state(name: str) -> None:
    compiled, samples, state = learned()
    with open_board(name) as (_, line):
        session = Session(line)
        session.hello()
        session.load_plan(compiled.plan)
        untrained = session.read_state()
        list(session.train_stream(samples, SKIP))
        assert session.read_state() == state
        assert state != untrained
        assert session.stats().rx_overruns == 0


@pytest.mark.parametrize("name", EMULATED)
def test_the_same_instructions_on_every_run(name: str) -> None:
    compiled, samples, _ = learned()
    with open_board(name) as (board, line):
        session = Session(line)
        session.hello()
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
        assert shortest <= 1, "this step is about as long as a tick of the timer"
        assert max(runs[0]) > 1_000
        assert 64 < session.stats().stack_peak_bytes <= board.stack_bytes * 4 // 5
