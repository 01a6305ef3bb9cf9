"""`mcugrad bench`: the cost of each step is measured on the board, and adds up."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from e2e.conftest import MODEL
from helpers.cli import mcugrad
from mcugrad.board import open_board
from mcugrad.errors import DeviceError
from mcugrad.link import Session
from mcugrad.link.protocol import Command
from mcugrad.pipeline import compile_model

BOARD = "qemu-mps2-an386"


@pytest.mark.qemu
def test_the_steps_add_up_to_the_whole() -> None:
    done = mcugrad("bench", MODEL, "--train", "all", "--board", BOARD, "--json")
    steps = done.result["steps"]
    compiled = compile_model(MODEL, "all")
    with open_board(BOARD) as (_, line):
        session = Session(line)
        caps = session.hello()
        session.load_plan(compiled.plan)
        session.sample(np.random.default_rng(1).integers(-128, 128, compiled.program.sample.nbytes).astype(np.int8))
        whole = caps.units(session.train(0, 0.001, 0.0).ticks)
    assert whole is not None and done.result["unit"] == "instructions" and done.result["timing"] == "emulated"
    assert len(steps) == len(compiled.program.steps) - len(compiled.program.segments[1])  # eval does not run
    assert sum(s["macs"] for s in steps) == sum(compiled.program.step_macs)
    assert abs(done.result["total"] - whole) < 0.02 * whole + 200 * len(steps)
    assert all(s["cost"] > s["macs"] for s in steps)


def test_a_trace_of_an_unknown_kind_is_refused() -> None:
    with open_board("host") as (_, line):
        session = Session(line)
        session.hello()
        session.load_plan(compile_model(MODEL, "head").plan)
        with pytest.raises(DeviceError, match="MG_ERR_ARG"):
            session._call(Command.TRACE, struct.pack("<B", 3))


def test_the_plan_is_the_one_that_train_would_run() -> None:
    plain = mcugrad("bench", MODEL, "--train", "all", "--board", "host", "--json")
    again = mcugrad("bench", MODEL, "--train", "all", "--board", "host", "--recompute", "--json")
    assert sum(s["macs"] for s in again.result["steps"]) > sum(s["macs"] for s in plain.result["steps"])
    mcugrad("bench", MODEL, "--train", "all", "--board", BOARD, "--sram", "8000").fails(8, "bytes of RAM", "--sram gives 8,000")
