"""--batch on the command line: boards and reference leave the same bytes, and checkpoints know what they belong to."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from e2e.conftest import EPOCHS, LR, MODEL, QEMU, SCHEME, SEED, TRAIN_WINDOWS, Motions, Train
from helpers.cli import mcugrad
from helpers.motions import CLASSES
from mcugrad import data
from mcugrad.board import open_board
from mcugrad.link import Session
from mcugrad.lower import Options
from mcugrad.pipeline import compile_model
from mcugrad.plan import decode
from mcugrad.ref import Machine
from mcugrad.training.checkpoint import read_checkpoint
from mcugrad.training.recipe import Recipe
from mcugrad.training.run import Step
from mcugrad.training.run import train as train_on_board

BATCH = 5
"""56 windows are eleven batches and one sample."""

BOARDS = ["host", pytest.param(QEMU, marks=pytest.mark.qemu)]


def reference_state(file: Path, batch: int, ends: list[int], steps: int) -> bytes:
    """STATE after ``steps`` steps in NumPy, with a commit behind the steps ``ends``."""
    plan = compile_model(MODEL, SCHEME, CLASSES, Options(2, SEED, batch))
    dataset = data.load(file, plan.model)
    assert dataset.y is not None
    recipe = Recipe(EPOCHS, LR, "cosine", 0.1, SEED)
    machine = Machine(plan.plan)
    for step, i in zip(range(steps), recipe.order(len(dataset)), strict=False):
        rate = recipe.learning_rate(step, EPOCHS * len(dataset)) / batch
        machine.train(dataset.x[i], int(dataset.y[i]), rate, recipe.skip)
        if step in ends:
            machine.commit()
    return machine.state


@pytest.mark.parametrize("board", BOARDS)
def test_state_is_the_reference_s(train: Train, motion_files: Motions, board: str) -> None:
    run = train(board, batch=BATCH)
    assert (TRAIN_WINDOWS, EPOCHS, run.result["steps"]) == (56, 2, 112)
    ends = [*range(4, 56, 5), 55, *range(60, 112, 5), 111]
    saved = read_checkpoint(run.path("checkpoint"))
    assert saved.batch == BATCH and saved.state == reference_state(motion_files.train, BATCH, ends, 112)
    assert saved.state != reference_state(motion_files.train, BATCH, [k for k in ends if k != 55], 112)
    assert run.bytes("model") != MODEL.read_bytes()


def test_a_checkpoint_of_a_batch_makes_its_own_plan_again(train: Train, motion_files: Motions) -> None:
    batch, at_once = train("host", batch=BATCH), train("host")
    assert read_checkpoint(batch.path("checkpoint")).plan_crc != read_checkpoint(at_once.path("checkpoint")).plan_crc
    done = mcugrad("eval", MODEL, "--checkpoint", batch.path("checkpoint"), "--data", motion_files.held_out, "--board", "host", "--json")
    assert done.result["accuracy"] == batch.result["accuracy"]["after"]


def test_what_a_stopped_batch_has_summed_up_is_committed(motion_files: Motions) -> None:
    compiled = compile_model(MODEL, SCHEME, CLASSES, Options(2, SEED, 40))
    dataset = data.load(motion_files.train, compiled.model)
    steps: list[Step] = []
    with open_board("host") as (_, line):
        session = Session(line)
        session.hello()
        session.load_plan(compiled.plan)
        recipe = Recipe(EPOCHS, LR, "cosine", 0.1, SEED, 40)
        train_on_board(session, dataset, recipe, steps.append, lambda: len(steps) >= 3)
        state = session.read_state()
    assert 3 <= len(steps) < 40
    assert state == reference_state(motion_files.train, 40, [len(steps) - 1], len(steps))
    assert state != reference_state(motion_files.train, 40, [], len(steps))


def test_check_compares_commits_too(motion_files: Motions) -> None:
    arguments = ("--data", motion_files.train, "--board", "host", "--classes", CLASSES, "--train", SCHEME, "--steps", 6, "--settle", 40)
    batch = mcugrad("check", MODEL, *arguments, "--batch", 4, "--json").result
    at_once = mcugrad("check", MODEL, *arguments, "--json").result
    assert batch["bit_exact"]
    commits = len(compile_model(MODEL, SCHEME, CLASSES, Options(batch=4)).program.segments[4])
    assert batch["outputs_compared"] == at_once["outputs_compared"] + 4 * commits, "two commits of a cold and two of a settled run"


def test_bench_shows_what_a_commit_costs() -> None:
    steps = mcugrad("bench", MODEL, "--train", SCHEME, "--classes", CLASSES, "--batch", 4, "--board", QEMU, "--json").result["steps"]
    cost = {s["layer"]: s["cost"] for s in steps if s["step"] == "commit_s16"}
    weights = {t.name: t.weights.nbytes // 2 for t in compile_model(MODEL, SCHEME, CLASSES).program.trained if t.weights is not None}
    assert set(cost) == set(weights) and all(cost[name] < 40 * weights[name] + 500 for name in cost)


@pytest.mark.parametrize("command", ["plan", "build"])
def test_plan_and_build_make_the_plan_of_a_batch(tmp_path: Path, command: str) -> None:
    out = tmp_path / "plan.bin" if command == "plan" else tmp_path
    mcugrad(command, MODEL, "--train", SCHEME, "--classes", CLASSES, "--batch", 2, "--board", "host", "--out", out, "--json")
    made = decode((tmp_path / "plan.bin").read_bytes())
    assert made.segments[4] > 0 and np.all([s.values["af"] > 0 for s in made.steps if "_upd_" in s.kind.name])


@pytest.mark.parametrize(
    ("options", "texts"),
    [
        (("--batch", 8, "--rounding", "stochastic"), ["--batch 8 --rounding stochastic", "--rounding residual, or --batch 1"]),
        (("--batch", 0), ["--batch 0: at least 1"]),
    ],
)
def test_what_cannot_be_a_batch_is_one_line(motion_files: Motions, options: tuple[object, ...], texts: list[str]) -> None:
    mcugrad("train", MODEL, "--data", motion_files.train, "--board", "host", *options).fails(2, *texts)
    mcugrad("plan", MODEL, "--board", "host", *options).fails(2, *texts)
