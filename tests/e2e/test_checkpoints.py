"""Checkpoints in a board's flash, from the command line and over the link: 10 steps, save, power off, 10 steps are 20 steps."""

from __future__ import annotations

import functools
import json
import os
import random
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from e2e.conftest import MODEL, QEMU, SCHEME, SEED, Motions
from helpers.cli import Done, mcugrad
from helpers.motions import CLASSES, motions
from helpers.tiny_plan import samples, tiny_plan
from mcugrad import data
from mcugrad.board import Kind, find_board, load_boards, open_board
from mcugrad.cli.checkpoint import wear
from mcugrad.errors import DeviceError, FitError, LinkError
from mcugrad.link import Caps, Checkpoints, Command, DeviceCheckpoint, Session, Transport
from mcugrad.lower import Options
from mcugrad.native import NativeMachine
from mcugrad.pipeline import compile_model
from mcugrad.plan.codec import Region
from mcugrad.training.checkpoint import read_checkpoint

OTHERS = [name for name, board in load_boards().items() if board.kind is Kind.QEMU and name != QEMU]
BOARDS = [
    "host",
    pytest.param(QEMU, marks=pytest.mark.qemu),
    *(pytest.param(name, marks=[pytest.mark.qemu, pytest.mark.slow]) for name in OTHERS),
]
SKIP = 0.0
PLANS: dict[str, tuple[str, Options]] = {
    "residual": (SCHEME, Options(2, SEED)),
    "stochastic": ("all", Options(1, SEED)),
    "micro-batch": (SCHEME, Options(2, SEED, 7)),
}
ENDS = {"micro-batch": (6, 13, 19)}
"""Samples behind which a micro-batch ends: the cut after ten stands in the middle of one."""


@functools.cache
def plan(name: str) -> bytes:
    scheme, options = PLANS[name]
    return compile_model(MODEL, scheme, CLASSES, options).plan


@functools.cache
def twenty() -> list[tuple[bytes, int, float]]:
    x, labels = motions(20, 3)
    int8 = np.round(x * 127).astype(np.int8).reshape(len(x), -1)
    return [(s.tobytes(), int(label), 0.05) for s, label in zip(int8, labels, strict=True)]


def learn(session: Session, name: str, first: int, last: int, saves: tuple[int, ...] = ()) -> None:
    commits = {k - first for k in ENDS.get(name, ())}
    replies = list(session.train_stream(twenty()[first:last], SKIP, commits, saves))
    assert len(replies) == last - first


@functools.cache
def state_after_twenty(name: str) -> bytes:
    net = NativeMachine(plan(name))
    for k, (x, label, lr) in enumerate(twenty()):
        net.train(np.frombuffer(x, np.int8), label, lr, SKIP)
        if k in ENDS.get(name, ()):
            net.commit()
    return net.state


def opened(line: Transport) -> Session:
    session = Session(line, deadline_s=20.0)
    session.hello()
    return session


@pytest.fixture
def flash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that is the flash of every host board of this test."""
    path = tmp_path / "flash.bin"
    monkeypatch.setenv("MCUGRAD_FLASH", str(path))
    return path


# ---- ten and ten are twenty -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("board", BOARDS)
def test_ten_steps_save_reset_load_and_ten_are_twenty(board: str, name: str) -> None:
    """Fault F102: residuals, sums of a micro-batch, exponents and the random generator are in the checkpoint."""
    with open_board(board) as (_, line):
        session = opened(line)
        loaded = session.load_plan(plan(name))
        learn(session, name, 0, 10)
        assert session.save() == 1
        caps = session.restart()
        assert caps.plan_crc == loaded.plan_crc
        assert session.checkpoints().restored == 1, "restored at the start"
        learn(session, name, 10, 20)
        assert session.read_state() == state_after_twenty(name)
        session.load_plan(plan(name))
        assert session.restore() == 1, "or when asked, behind a load"
        learn(session, name, 10, 20)
        assert session.read_state() == state_after_twenty(name)


@pytest.mark.parametrize("name", PLANS)
def test_a_host_board_goes_on_after_its_process_has_ended(flash: Path, name: str) -> None:
    with open_board("host") as (_, line):
        session = opened(line)
        loaded = session.load_plan(plan(name))
        learn(session, name, 0, 10, saves=(4, 9))
    with open_board("host") as (_, line):
        session = opened(line)
        found = session.checkpoints()
        assert (found.restored, found.erases, session.caps.plan_crc) == (2, 1, loaded.plan_crc)
        session.adopt(loaded)
        learn(session, name, 10, 20)
        assert session.read_state() == state_after_twenty(name)


def parts_of_state(name: str) -> dict[str, list[int]]:
    """Offsets in STATE of what is no weight: the random generator, exponents, what lies below int8 weights."""
    net = NativeMachine(plan(name))
    found: dict[str, set[int]] = {"rng": set(), "exponents": set(), "below the weights": set()}
    for step in net.plan.steps:
        for ref in step.kind.refs:
            value = int(step.values[ref.name])
            at = value & (1 << 30) - 1
            if value >> 30 != Region.STATE:
                continue
            if ref.type == "mg_rng":
                found["rng"] |= set(range(at + 4, at + 8))
            elif ref.type == "mg_exponent":
                found["exponents"] |= set(range(at, at + 4))
            elif ref.type == "int16_t" and step.kind.name.endswith("q16"):
                count = eval(ref.count, {}, dict(step.values))
                found["below the weights"] |= set(range(at, at + 2 * count, 2))
    return {part: sorted(offsets) for part, offsets in found.items()}


@pytest.mark.parametrize(
    ("name", "part"),
    [("stochastic", "rng"), ("stochastic", "exponents"), ("residual", "below the weights"), ("micro-batch", "below the weights")],
)
def test_without_this_part_training_would_go_another_way(name: str, part: str) -> None:
    """What makes the test above mean something: each part has changed after ten steps, and matters to the next ten."""
    net = NativeMachine(plan(name))
    fresh = net.state
    for k, (x, label, lr) in enumerate(twenty()):
        net.train(np.frombuffer(x, np.int8), label, lr, SKIP)
        if k in ENDS.get(name, ()):
            net.commit()
        if k == 9:
            lossy = bytearray(net.state)
            for at in parts_of_state(name)[part]:
                lossy[at] = fresh[at]
            assert bytes(lossy) != net.state
            net.state = bytes(lossy)
    assert net.state != state_after_twenty(name)


def test_saving_changes_nothing() -> None:
    with open_board("host") as (_, line):
        session = opened(line)
        session.load_plan(plan("stochastic"))
        learn(session, "stochastic", 0, 20, saves=tuple(range(20)))
        assert session.read_state() == state_after_twenty("stochastic")
        found = session.checkpoints()
        assert (found.newest is not None and found.newest.sequence, found.erases) == (20, 10)


# ---- power off at any moment ----------------------------------------------------------------------------------------------


def kill_while_it_saves(session: Session, process: subprocess.Popen[bytes], after_s: float) -> None:
    session._post(Command.SAVE, b"")
    time.sleep(after_s)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()


def test_a_process_that_is_killed_while_it_saves(flash: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault F100, with a real process: whatever a kill leaves in the file, the start finds the last checkpoint or the one under way."""
    processes: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def noted(*args: Any, **kwargs: Any) -> subprocess.Popen[bytes]:
        processes.append(popen(*args, **kwargs))
        return processes[-1]

    monkeypatch.setattr("mcugrad.board.open.subprocess.Popen", noted)
    rng = random.Random(5)
    firmware = find_board("host").build()
    tiny = tiny_plan(inputs=4000)
    possible: dict[int, bytes] = {}
    for _ in range(8):
        with open_board("host", firmware) as (_, line):
            session = Session(line, deadline_s=1.0, retry_s=0.1)
            session.hello()
            restored = session.checkpoints().restored
            state_bytes = session.load_plan(tiny).state_bytes
            if possible:
                assert restored == session.restore()
                assert session.read_state() == possible[restored]
            for k in (1, 2):
                possible[restored + k] = rng.randbytes(state_bytes)
                session.write_state(possible[restored + k])
                if k == 1:
                    assert session.save() == restored + 1
            kill_while_it_saves(session, processes[-1], rng.random() * 0.003)
            possible = {restored + k: possible[restored + k] for k in (1, 2)}
            with pytest.raises(LinkError):
                session.stats()


# ---- refusals -------------------------------------------------------------------------------------------------------------


def test_refusals_over_the_link() -> None:
    with open_board("host") as (_, line):
        session = opened(line)
        for needs_a_plan in (session.save, session.restore):
            with pytest.raises(DeviceError, match="MG_LINK_ERR_NO_PLAN"):
                needs_a_plan()
        assert session.checkpoints().slots == (None, None)
        first = session.load_plan(tiny_plan())
        with pytest.raises(DeviceError, match=r"MG_ERR_EMPTY.*--save-every") as empty:
            session.restore()
        assert empty.value.exit_code == 6
        session.save()
        second = session.load_plan(tiny_plan(seed=2))
        before = session.read_state()
        with pytest.raises(DeviceError, match=f"MG_ERR_OTHER.*0x{first.plan_crc:08x}.*0x{second.plan_crc:08x}") as other:
            session.restore()
        assert other.value.exit_code == 6
        assert session.read_state() == before
        session.restart()
        assert session.checkpoints().restored == 0
        assert session.read_state() == before, "the start does not take it either"


def test_a_state_larger_than_a_slot() -> None:
    board = find_board("host")
    with open_board("host") as (_, line):
        session = opened(line)
        assert session.caps.checkpoint_bytes == board.checkpoint_bytes
        session.load_plan(tiny_plan(inputs=board.checkpoint_bytes // 6))
        with pytest.raises(FitError, match=r"MG_ERR_STORE.*262,144.*checkpoint_bytes"):
            session.save()
        session.load_plan(tiny_plan())
        session.save()


def test_a_restart_without_a_plan_and_behind_training() -> None:
    with open_board("host") as (_, line):
        session = opened(line)
        assert session.restart().plan_crc == 0
        session.load_plan(tiny_plan())
        start = session.read_state()
        list(session.train_stream(samples(5), 0.0))
        session.restart()
        assert session.read_state() == start


# ---- the command line -----------------------------------------------------------------------------------------------------


def train(motion_files: Motions, out: Path, *more: str | int, scheme: str = SCHEME) -> Done:
    arguments = (
        "--train",
        scheme,
        "--classes",
        CLASSES,
        "--epochs",
        1,
        "--schedule",
        "constant",
        "--skip",
        0,
        "--seed",
        SEED,
        "--out",
        out,
    )
    return mcugrad("train", MODEL, "--data", motion_files.train, "--board", "host", *arguments, *more)


def state_of(result: dict[str, Any]) -> bytes:
    return read_checkpoint(Path(result["paths"]["checkpoint"])).state


def test_save_every_and_restore(motion_files: Motions, tmp_path: Path, flash: Path) -> None:
    once = train(motion_files, tmp_path / "a.tflite", "--save-every", 20, "--json").result
    assert once["checkpoints"]["newest"] == 3, "56 samples: behind 20, 40 and 56"
    assert "each slot was erased 2 times; rated for 10,000, it lasts 399,920 more samples at --save-every 20" in once["notes"]
    shown = mcugrad("checkpoint", "--board", "host", "--json").result
    assert (shown["newest"], shown["restored"], shown["erases"], shown["slots"][1]["sequence"]) == (3, 3, 2, 2)
    twice = train(motion_files, tmp_path / "b.tflite", "--restore", "--json").result
    assert twice["checkpoints"] is None
    compiled = compile_model(MODEL, SCHEME, CLASSES, Options(2, SEED))
    windows = data.load(motion_files.train, compiled.model)
    assert windows.y is not None
    net = NativeMachine(compiled.plan)
    net.state = state_of(once)
    events = map(json.loads, Path(twice["paths"]["log"]).read_text(encoding="utf-8").splitlines())
    for step in (e for e in events if e["event"] == "step"):
        net.train(windows.x[step["sample"]], int(windows.y[step["sample"]]), step["lr"], 0.0)
    assert state_of(twice) == net.state != state_of(once)


def test_what_people_read(motion_files: Motions, tmp_path: Path, flash: Path) -> None:
    empty = mcugrad("checkpoint", "--board", "host")
    assert "host: two slots of 262,144 bytes, each erased 0 times\nslot 0: no whole checkpoint\nslot 1: no whole checkpoint" in empty.out
    assert train(motion_files, tmp_path / "a.tflite", "--save-every", 56).code == 0
    shown = mcugrad("checkpoint", "--board", "host").out
    assert "slot 0: checkpoint 1, the newest: " in shown
    assert ", of the plan on the board\nslot 1: no whole checkpoint\nthe board started with checkpoint 1\n" in shown
    assert "began with checkpoint 1 in the board's flash" in train(motion_files, tmp_path / "b.tflite", "--restore").out


def test_a_board_that_keeps_none_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Session, "checkpoints", lambda self: Checkpoints(0, 0, (None, None)))
    assert mcugrad("checkpoint", "--board", "host").out == "host keeps no checkpoints\n"
    assert mcugrad("checkpoint", "--board", "host", "--json").result["slot_bytes"] == 0


def test_the_newest_and_the_wear_are_the_device_s() -> None:
    a, b = DeviceCheckpoint(0xFFFFFFFF, 1, 2, 3), DeviceCheckpoint(0, 1, 2, 3)
    assert Checkpoints(64, 0, (a, b)).newest == Checkpoints(64, 0, (b, a)).newest == b
    assert Checkpoints(64, 0, (a, None)).newest == Checkpoints(64, 0, (None, a)).newest == a
    assert [Checkpoints(64, 0, (DeviceCheckpoint(n, 1, 2, 3), None)).erases for n in (1, 2, 3, 20_000)] == [1, 1, 2, 10_000]
    worn = Checkpoints(64, 0, (DeviceCheckpoint(30_000, 1, 2, 3), None))
    assert "it lasts 0 more samples" in wear(worn, 5)


def test_the_command_line_refuses(motion_files: Motions, tmp_path: Path, flash: Path) -> None:
    out = tmp_path / "x.tflite"
    train(motion_files, out, "--restore").fails(6, "MG_ERR_EMPTY")
    assert train(motion_files, out, "--save-every", 56).code == 0
    train(motion_files, out, "--restore", scheme="all").fails(6, "MG_ERR_OTHER.*0x[0-9a-f]{8}.*0x[0-9a-f]{8}.*without --restore")
    assert train(motion_files, out, "--save-every", 0).code == 2


def test_a_board_without_room_is_refused_before_training(motion_files: Motions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hello = Session.hello

    def without_storage(self: Session) -> Caps:
        self._caps = replace(hello(self), checkpoint_bytes=0)
        return self._caps

    monkeypatch.setattr(Session, "hello", without_storage)
    train(motion_files, tmp_path / "x.tflite", "--save-every", 5).fails(
        8, "--save-every 5: a checkpoint needs .* has 0: set checkpoint_bytes"
    )
    assert not (tmp_path / "x.tflite").exists()
