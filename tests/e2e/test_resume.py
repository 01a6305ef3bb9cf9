"""mcugrad train is cut off, and goes on with --resume: the weights at its end are those of a run that nothing disturbed."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.conftest import LR, MODEL, SCHEME, SEED, Motions
from e2e.test_interrupt import steps_in, wait_for_steps
from helpers.cli import Done, finished, mcugrad, started
from helpers.faulty_line import TcpRelay
from helpers.motions import CLASSES
from mcugrad.board import open_board
from mcugrad.training.checkpoint import read_checkpoint

EPOCHS, STEPS = 3, 168
OPTIONS = ("--classes", CLASSES, "--train", SCHEME, "--epochs", EPOCHS, "--lr", LR, "--seed", SEED)


@pytest.fixture(scope="module")
def relay() -> Iterator[TcpRelay]:
    """A board that outlives the command, at the end of a line that can be cut."""
    with open_board("host") as (_, line), TcpRelay(line) as found:
        yield found


def train(files: Motions, out: Path, *more: str | float) -> Done:
    return mcugrad("train", MODEL, "--data", files.train, *OPTIONS, "--out", out, *more)


def undisturbed(files: Motions, folder: Path, *more: str | float) -> bytes:
    out = folder / "undisturbed.tflite"
    assert train(files, out, "--board", "host", *more).code == 0
    assert not out.with_suffix(".progress").exists()
    return read_checkpoint(out.with_suffix(".ckpt")).state


@pytest.mark.parametrize("batch", [1, 5])
def test_a_line_that_is_cut(motion_files: Motions, tmp_path: Path, relay: TcpRelay, batch: int) -> None:
    """It stops in the middle of a reply, twice; the board computes on, and the run with it."""
    out, where = tmp_path / "trained.tflite", ("--port", relay.address, "--deadline", 0.7, "--batch", batch)
    state = undisturbed(motion_files, tmp_path, "--batch", batch)
    relay.allowed = 5301
    cut = train(motion_files, out, *where)
    cut.fails(75, r"did not (answer|take) .*; \d+ samples are acknowledged", "the same command and --resume")
    acknowledged = int(re.findall(r"(\d+) samples are acknowledged", cut.err)[0])
    assert 0 < acknowledged == steps_in(out.with_suffix(".jsonl")) < STEPS and not out.exists()
    relay.allowed = 1500
    again = train(motion_files, out, *where, "--resume")
    assert again.code == 75
    relay.allowed = 1 << 60
    last = train(motion_files, out, *where, "--resume", "--json")
    assert read_checkpoint(out.with_suffix(".ckpt")).state == state
    events = [json.loads(line) for line in out.with_suffix(".jsonl").read_text(encoding="utf-8").splitlines()]
    resumed = [e for e in events if e["event"] == "resumed"]
    assert [e["source"] for e in resumed] == ["board", "board"] and resumed[0]["position"] >= acknowledged
    lost = sum(e["replies_lost"] for e in resumed[-1:])
    assert last.result["steps"] == STEPS - lost and lost <= 16
    assert not out.with_suffix(".progress").exists()
    train(motion_files, out, *where, "--resume").fails(2, "there is no run to resume")


@pytest.mark.parametrize(("batch", "snapshot"), [(1, ()), (40, ()), (1, ("--snapshot", 50))])
def test_a_board_that_was_reset(
    motion_files: Motions, tmp_path: Path, relay: TcpRelay, batch: int, snapshot: tuple[str | int, ...]
) -> None:
    """Its STATE is gone: the run goes on from the last snapshot, or from its start."""
    out, more = tmp_path / "trained.tflite", ("--deadline", 0.7, "--batch", batch, *snapshot)
    state = undisturbed(motion_files, tmp_path, "--batch", batch)
    relay.allowed = 5301 if not snapshot else 12_000
    assert train(motion_files, out, "--port", relay.address, *more).code == 75
    relay.allowed = 1 << 60
    result = train(motion_files, out, "--board", "host", *more, "--resume", "--json").result
    assert read_checkpoint(out.with_suffix(".ckpt")).state == state and result["steps"] == STEPS
    resumed = next(
        e for e in map(json.loads, out.with_suffix(".jsonl").read_text(encoding="utf-8").splitlines()) if e["event"] == "resumed"
    )
    assert (resumed["source"], resumed["position"] % 50) == ("snapshot", 0) and (resumed["position"] > 0) == bool(snapshot)


@pytest.mark.parametrize("batch", [1, 40])
def test_ctrl_c_and_on(motion_files: Motions, tmp_path: Path, batch: int) -> None:
    """A half micro-batch is committed for the model that Ctrl-C leaves, and not for the run that goes on."""
    out, epochs = tmp_path / "trained.tflite", ("--epochs", 16, "--batch", batch, "--board", "host")
    state = undisturbed(motion_files, tmp_path, *epochs)
    process = started("train", MODEL, "--data", motion_files.train, *OPTIONS, "--out", out, *epochs)
    wait_for_steps(process, out.with_suffix(".jsonl"), 60)
    os.killpg(process.pid, signal.SIGINT)
    assert finished(process).code == 130
    reached = steps_in(out.with_suffix(".jsonl"))
    done = train(motion_files, out, *epochs, "--resume", "--json")
    assert reached < 16 * 56 == done.result["steps"]
    assert read_checkpoint(out.with_suffix(".ckpt")).state == state


@pytest.mark.parametrize(
    ("more", "code", "text"),
    [
        (("--lr", 0.5), 2, "the run to resume has --lr 0.02, not 0.5"),
        (("--epochs", 4), 2, "has --epochs 3, not 4"),
        (("--seed", 9), 6, "the run to resume has plan"),
        (("--train", "head"), 6, "the run to resume has plan"),
        (("--data", "held_out"), 4, "was begun with data"),
    ],
)
def test_another_run_is_refused(
    motion_files: Motions, tmp_path: Path, relay: TcpRelay, more: tuple[str | float, ...], code: int, text: str
) -> None:
    out, where = tmp_path / "trained.tflite", ("--port", relay.address, "--deadline", 0.4)
    relay.allowed = 5301
    assert train(motion_files, out, *where).code == 75
    relay.allowed = 1 << 60
    given = tuple(motion_files.held_out if v == "held_out" else v for v in more)
    train(motion_files, out, *where, "--resume", *given).fails(code, text)
