"""The compiler's optimization level changes no bit of STATE."""

from __future__ import annotations

import pytest

from e2e.builds import firmware_in
from e2e.conftest import LR, MODEL, QEMU, Motions
from helpers.motions import CLASSES
from mcugrad import data
from mcugrad.board import Firmware, open_board
from mcugrad.link import Session
from mcugrad.lower import Options
from mcugrad.pipeline import Compiled, compile_model
from mcugrad.ref import Machine

STEPS = 12
SCHEMES = [("all", 2), ("all", 1)]


def compiled(scheme: str, ws: int) -> Compiled:
    return compile_model(MODEL, scheme, CLASSES, Options(ws, 1))


def trained_state(board: str, firmware: Firmware, plan: Compiled, motion_files: Motions) -> bytes:
    dataset = data.load(motion_files.train, plan.model)
    assert dataset.y is not None
    samples = [(x, int(y), LR) for x, y in zip(dataset.x[:STEPS], dataset.y[:STEPS], strict=True)]
    with open_board(board, firmware) as (_, line):
        session = Session(line)
        session.hello()
        session.load_plan(plan.plan)
        list(session.train_stream(samples, 0.0))
        return session.read_state()


def reference_state(plan: Compiled, motion_files: Motions) -> bytes:
    dataset = data.load(motion_files.train, plan.model)
    assert dataset.y is not None
    machine = Machine(plan.plan)
    for x, y in zip(dataset.x[:STEPS], dataset.y[:STEPS], strict=True):
        machine.train(x, int(y), LR, 0.0)
    return machine.state


@pytest.mark.parametrize(
    ("board", "level"),
    [("host", "O0"), ("host", "Os"), ("host", "O3"), pytest.param(QEMU, "O0", marks=pytest.mark.qemu)],
)
def test_state_is_the_same(motion_files: Motions, board: str, level: str) -> None:
    plans = [compiled(scheme, ws) for scheme, ws in SCHEMES]
    kernels = ";".join(sorted({step.kind.name for plan in plans for step in plan.program.steps}))
    options = ("-DCMAKE_BUILD_TYPE=None", f"-DCMAKE_C_FLAGS=-{level}", f"-DMG_KERNELS={kernels}")
    firmware = firmware_in(f"{board}-{level.lower()}-watch", board, *options)
    for plan in plans:
        assert trained_state(board, firmware, plan, motion_files) == reference_state(plan, motion_files)
