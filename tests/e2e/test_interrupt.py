"""Ctrl-C in the middle of training saves the weights of exactly the steps that were done; nothing outlives the command."""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from e2e.conftest import LR, MODEL, QEMU, SCHEME, SEED, Motions
from helpers.cli import finished, mcugrad, started
from helpers.motions import CLASSES
from helpers.tiny_graphs import oracle
from mcugrad import data
from mcugrad.lower import Options
from mcugrad.pipeline import compile_model
from mcugrad.ref import Machine
from mcugrad.training.checkpoint import read_checkpoint
from mcugrad.training.recipe import Recipe

BOARDS = ["host", pytest.param(QEMU, marks=pytest.mark.qemu)]
EPOCHS = 5000
PATIENCE_S = 60.0


def training(files: Motions, board: str, out: Path, *more: str | float) -> subprocess.Popen[str]:
    """Start a training run that would take very long."""
    scheme = ("--classes", CLASSES, "--train", SCHEME, "--epochs", EPOCHS, "--lr", LR, "--seed", SEED)
    return started("train", MODEL, "--data", files.train, "--board", board, *scheme, "--out", out, *more)


def steps_in(log: Path) -> int:
    return log.read_text(encoding="utf-8").count('"event": "step"') if log.exists() else 0


def wait_for_steps(process: subprocess.Popen[str], log: Path, count: int) -> None:
    end = time.monotonic() + PATIENCE_S
    while steps_in(log) < count:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, "training does not get on"
        time.sleep(0.02)


def children(pid: int) -> list[int]:
    """The processes that ``pid`` has started."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in found.split()]


def gone(pids: list[int], within_s: float = 5.0) -> bool:
    end = time.monotonic() + within_s
    while any(alive(pid) for pid in pids):
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def reference_state(file: Path, steps: int) -> bytes:
    """STATE after the first ``steps`` steps of the run, in NumPy."""
    plan = compile_model(MODEL, SCHEME, CLASSES, Options(2, SEED))
    dataset = data.load(file, plan.model)
    assert dataset.y is not None
    recipe = Recipe(EPOCHS, LR, "cosine", 0.1, SEED)
    machine = Machine(plan.plan)
    for step, i in zip(range(steps), recipe.order(len(dataset)), strict=False):
        machine.train(dataset.x[i], int(dataset.y[i]), recipe.learning_rate(step, EPOCHS * len(dataset)), recipe.skip)
    return machine.state


@pytest.mark.parametrize("board", BOARDS)
def test_ctrl_c_saves_exactly_the_steps_done(motion_files: Motions, tmp_path: Path, board: str) -> None:
    out, checkpoint, log = (tmp_path / f"trained.{suffix}" for suffix in ("tflite", "ckpt", "jsonl"))
    process = training(motion_files, board, out)
    wait_for_steps(process, log, 20)
    boards = children(process.pid)
    os.killpg(process.pid, signal.SIGINT)
    done = finished(process)
    done.fails(130, "interrupted", re.escape(str(out)), re.escape(str(checkpoint)))
    found = re.search(r"weights after (\d+) steps", done.err)
    assert found is not None
    steps = int(found[1])
    assert steps >= 20 and steps == steps_in(log)
    last = json.loads(log.read_text(encoding="utf-8").splitlines()[-1])
    assert last == {"event": "stopped", "steps": steps, "reason": "interrupted"}
    assert read_checkpoint(checkpoint).state == reference_state(motion_files.train, steps)
    again = tmp_path / "again.tflite"
    assert mcugrad("export", MODEL, "--checkpoint", checkpoint, "--out", again).code == 0
    assert again.read_bytes() == out.read_bytes()
    x = data.load(motion_files.held_out, compile_model(MODEL, None).model).x[:1]
    assert oracle(out.read_bytes(), list(x[:, None])).size == CLASSES
    assert (tmp_path / "trained.svg").read_text(encoding="utf-8").startswith("<svg")
    assert boards and gone(boards)


def test_ctrl_c_in_json(motion_files: Motions, tmp_path: Path) -> None:
    process = training(motion_files, "host", tmp_path / "trained.tflite", "--json")
    wait_for_steps(process, tmp_path / "trained.jsonl", 5)
    os.killpg(process.pid, signal.SIGINT)
    done = finished(process)
    error = done.object["error"]
    assert done.code == error["code"] == 130 and error["name"] == "interrupted"
    assert str(tmp_path / "trained.ckpt") in error["hint"] and done.err == ""


def test_ctrl_c_pressed_again_and_again(motion_files: Motions, tmp_path: Path) -> None:
    """Impatience may cost the weights, but never leaves a damaged file or a traceback."""
    process = training(motion_files, "host", tmp_path / "trained.tflite")
    wait_for_steps(process, tmp_path / "trained.jsonl", 5)
    boards = children(process.pid)
    while process.poll() is None:
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(0.01)
    done = finished(process)
    assert done.code in (130, -signal.SIGINT) and "Traceback" not in done.err
    if (tmp_path / "trained.ckpt").exists():
        read_checkpoint(tmp_path / "trained.ckpt")
    assert gone(boards)


@pytest.mark.parametrize("board", BOARDS)
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["term", "kill"])
def test_no_orphans(motion_files: Motions, tmp_path: Path, board: str, how: signal.Signals) -> None:
    """Only the command gets the signal; its board ends with it."""
    process = training(motion_files, board, tmp_path / "trained.tflite")
    wait_for_steps(process, tmp_path / "trained.jsonl", 3)
    boards = children(process.pid)
    process.send_signal(how)
    finished(process)
    assert process.returncode == -how
    assert boards and gone(boards)


@pytest.mark.parametrize(("when", "where"), [(1, ""), (2, r"the weights after 56 steps are in .*trained\.tflite")])
def test_ctrl_c_while_evaluating(motion_files: Motions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: int, where: str) -> None:
    """Before training there is nothing to save; after it, everything is saved and the message says where."""
    command = importlib.import_module("mcugrad.cli.train")
    evaluate, calls = command.evaluate, []

    def pressed_at(*arguments: object) -> object:
        calls.append(1)
        if len(calls) == when:
            raise KeyboardInterrupt
        return evaluate(*arguments)

    monkeypatch.setattr(command, "evaluate", pressed_at)
    files = ("--data", motion_files.train, "--eval", motion_files.held_out, "--out", tmp_path / "trained.tflite")
    mcugrad("train", MODEL, *files, "--board", "host", "--classes", CLASSES, "--epochs", 1).fails(130, "interrupted", where)
    assert (tmp_path / "trained.tflite").exists() == (when == 2)


def test_diverged_training_saves_too(motion_files: Motions, tmp_path: Path) -> None:
    out = tmp_path / "trained.tflite"
    files = ("--data", motion_files.train, "--board", "host", "--classes", CLASSES, "--out", out)
    scheme = ("--train", "all", "--epochs", 20, "--lr", 1000, "--schedule", "constant", "--seed", SEED)
    done = mcugrad("train", MODEL, *files, *scheme)
    done.fails(5, r"the loss is [\d.e+]+ over the last 50", "use a smaller --lr", re.escape(str(out)))
    steps = steps_in(tmp_path / "trained.jsonl")
    assert f"weights after {steps} steps" in done.err
    assert 50 <= steps < 100, "the first samples' loss is no yardstick where they have exploded too"
    plan = compile_model(MODEL, "all", CLASSES, Options(2, SEED))
    dataset = data.load(motion_files.train, plan.model)
    assert dataset.y is not None
    machine = Machine(plan.plan)
    for _, i in zip(range(steps), Recipe(20, 1000.0, "constant", 0.1, SEED).order(len(dataset)), strict=False):
        machine.train(dataset.x[i], int(dataset.y[i]), 1000.0, 0.1)
    assert read_checkpoint(tmp_path / "trained.ckpt").state == machine.state
