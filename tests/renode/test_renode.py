"""With a real Renode: every board trains to the reference's STATE, byte for byte, and the Robot suite passes. Skipped without one."""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from helpers.shared import shared
from helpers.watch import SKIP, learned
from mcugrad.board import Kind, find_board, load_boards, open_board
from mcugrad.board.renode import GET_RENODE, need_renode
from mcugrad.errors import UnavailableError
from mcugrad.link import Session
from mcugrad.link.protocol import Region, Stats
from mcugrad.paths import root
from mcugrad.pipeline import Compiled, compile_model
from mcugrad.ref.run import Machine

BOARDS = [name for name, board in load_boards().items() if board.kind is Kind.RENODE]
CLIPS, CLASSES, LR = 3, 10, 0.05
ROBOT_S = 3600

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(shutil.which("renode") is None, reason=f"renode is not on PATH; get it: {GET_RENODE}"),
]


def demand(name: str) -> None:
    """Skip where this Renode is too old for the board."""
    try:
        need_renode(find_board(name))
    except UnavailableError as e:
        pytest.skip(str(e))


@functools.cache
def spoken() -> tuple[Compiled, tuple[tuple[bytes, int, float], ...], bytes]:
    """The keyword spotting net with a new head, a few clips as the link takes them, and STATE after the reference has learned them."""
    compiled = compile_model(shared("models/mlperf_tiny/kws_ref_model_int8.tflite"), "head,bias:2", CLASSES)
    with np.load(shared("datasets/fsdd_spoken_digits_mfcc_int8.npz")) as file:
        clips = file["x"][:CLIPS].astype(np.int8).reshape(CLIPS, -1)
        labels = [int(label) for label in file["y"][:CLIPS]]
    machine = Machine(compiled.plan)
    for clip, label in zip(clips, labels, strict=True):
        machine.train(clip, label, LR, 0.0)
    return compiled, tuple((clip.tobytes(), label, LR) for clip, label in zip(clips, labels, strict=True)), machine.state


def stats_of_run(name: str, compiled: Compiled, samples: tuple[tuple[bytes, int, float], ...], state: bytes, skip: float) -> Stats:
    """Train on a board, demand the reference's STATE, and return what the board measured."""
    with open_board(name) as (_, line):
        session = Session(line)
        session.hello()
        session.load_plan(compiled.plan)
        list(session.train_stream(samples, skip))
        assert session.read_state() == state
        return session.stats()


@pytest.mark.parametrize("name", BOARDS)
def test_the_watch_net_learns_the_same(name: str) -> None:
    demand(name)
    assert stats_of_run(name, *learned(), SKIP).rx_overruns == 0


@pytest.mark.parametrize("name", BOARDS)
def test_the_keyword_net_learns_the_same(name: str) -> None:
    demand(name)
    stats_of_run(name, *spoken(), 0.0)


def instructions(name: str) -> list[int]:
    """What each step of one training step of the watch net takes, in the unit of HELLO."""
    compiled, samples, _ = learned()
    with open_board(name) as (_, line):
        session = Session(line)
        caps = session.hello()
        session.load_plan(compiled.plan)
        session.profile_on()
        session.sample(samples[0][0])
        session.train(*samples[0][1:], SKIP)
        ticks = np.frombuffer(session.read(Region.TRACE, 0, 4 * len(compiled.program.steps)), "<u4").tolist()
    return [caps.units(t) or 0 for t in ticks]


@pytest.mark.qemu
@pytest.mark.parametrize("name", [name for name in BOARDS if find_board(name).image.startswith("qemu-")])
def test_an_instruction_counts_as_in_qemu(name: str) -> None:
    demand(name)
    here, there = instructions(name), instructions(find_board(name).image)
    assert sum(here) == pytest.approx(sum(there), rel=0.02)


@pytest.mark.slow
@pytest.mark.timeout(ROBOT_S)
def test_the_robot_suite(tmp_path: Path) -> None:
    if shutil.which("renode-test") is None:
        pytest.skip("renode-test is not on PATH: it comes with Renode and needs the tests/requirements.txt of its archive")
    suite = root() / "tests" / "renode" / "boards.robot"
    command = ["renode-test", "-r", str(tmp_path), "--variable", f"PYTHON:{sys.executable}", str(suite)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=ROBOT_S, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
