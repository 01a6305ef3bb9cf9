"""Nets of real size on the emulated Cortex-M7: one training step leaves the reference's STATE, byte for byte, in the RAM that was planned.

All 15 published schemes of MCUNet, MobileNetV2 and ProxylessNAS, and MLPerf Tiny's nets with every layer and with a few trained. One of
them runs in `make test`, all in `make test-all`.
"""

from __future__ import annotations

import numpy as np
import pytest

from helpers.published import ALL, BOARD, compiled
from helpers.shared import shared
from mcugrad.autodiff import Loss
from mcugrad.board import open_board
from mcugrad.link import Session
from mcugrad.lower import Options
from mcugrad.pipeline import Compiled, compile_model
from mcugrad.ref import Machine
from mcugrad.report import report

pytestmark = [pytest.mark.qemu, pytest.mark.timeout(600)]

TINY = {
    "kws, all": ("mlperf_tiny/kws_ref_model_int8.tflite", "all", 2, None),
    "kws, sparse": ("mlperf_tiny/kws_ref_model_int8.tflite", "head,bias:4,weights:conv_4,weights:conv_3:1/2", 2, None),
    "resnet8, all": ("mlperf_tiny/pretrainedResnet_quant_int8.tflite", "all", 1, None),
    "resnet8, sparse": ("mlperf_tiny/pretrainedResnet_quant_int8.tflite", "head,bias:4,weights:6:1/4,weights:8:1/2", 2, None),
    "ad01, all": ("mlperf_tiny/ad01_int8.tflite", "all", 1, Loss.MSE),
    "ad01, sparse": ("mlperf_tiny/ad01_int8.tflite", "bias:4,weights:9", 2, Loss.MSE),
    "vww, sparse": ("mlperf_tiny/vww_96_int8.tflite", "head,bias:8,weights:24:1/4,weights:26:1/8", 2, None),
}
"""Name -> (file, --train, bytes of a weight, loss). MLPerf's visual wake words with all layers trained needs more RAM than the board has:
that one runs on the host board."""


def one_step(planned: Compiled, board_name: str) -> None:
    """A step on one random sample, on a board and in the reference."""
    rng = np.random.default_rng(5)
    x = rng.integers(-128, 128, planned.program.sample.nbytes).astype(np.int8)
    target = rng.integers(-128, 128, planned.program.target.nbytes).astype(np.int8) if planned.program.target else None
    machine = Machine(planned.plan)
    machine.train(x, 0, 0.01, 0.0, target=target)
    with open_board(board_name) as (board, line):
        session = Session(line)
        session.hello()
        session.load_plan(planned.plan)
        session.sample(x.tobytes() + (target.tobytes() if target is not None else b""))
        session.train(0, 0.01, 0.0)
        assert session.read_state() == machine.state != machine.plan.init
        stats = session.stats()
        session.bye()
    ram = report(planned, board).ram
    assert stats.pool_used_bytes == ram.arena + ram.state + ram.io
    assert ram.arena - 16 < stats.arena_touched_bytes <= ram.arena
    if board_name != "host":
        assert stats.static_ram_bytes == ram.runtime and stats.stack_reserved_bytes == ram.stack
        assert stats.stack_peak_bytes * 5 <= ram.stack * 4


def test_mcunet_49_kb() -> None:
    one_step(compiled("mcunet-5fps", "49kb", 2), BOARD)


@pytest.mark.slow
@pytest.mark.parametrize("net, scheme", ALL)
def test_every_published_scheme(net: str, scheme: str) -> None:
    for ws in (1, 2):
        one_step(compiled(net, scheme, ws), BOARD)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(TINY))
def test_mlperf_tiny(name: str) -> None:
    file, scheme, ws, loss = TINY[name]
    one_step(compile_model(shared(f"models/{file}"), scheme, None, Options(ws=ws), loss), BOARD)


@pytest.mark.slow
def test_visual_wake_words_trained_in_all_layers() -> None:
    one_step(compile_model(shared("models/mlperf_tiny/vww_96_int8.tflite"), "all", None, Options(ws=1)), "host")
