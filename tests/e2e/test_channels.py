"""`--channels norm`, from one model file to another: trained in one order of channels, exported in the model's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from e2e.conftest import LR, MODEL, SEED, Motions, Trained
from helpers.cli import mcugrad
from helpers.motions import CLASSES
from helpers.tiny_graphs import oracle
from mcugrad import data
from mcugrad.graph import Graph
from mcugrad.graph.edit import replace_head, weight_of
from mcugrad.graph.permute import channel_norms
from mcugrad.importer import read_model
from mcugrad.training.checkpoint import Checkpoint, read_checkpoint, write_checkpoint

SLICES = {"conv_3": 2, "conv_2": 4}
"""Layer -> the part of its channels that is trained."""

SCHEME = "head," + ",".join(f"weights:{name}:1/{part}" for name, part in SLICES.items())


@pytest.fixture(scope="module")
def run(motion_files: Motions, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    out = tmp_path_factory.mktemp("norm") / "trained.tflite"
    done = mcugrad(
        *("train", MODEL, "--data", motion_files.train, "--eval", motion_files.held_out, "--board", "host", "--classes", CLASSES),
        *("--train", SCHEME, "--channels", "norm", "--epochs", 2, "--lr", LR, "--seed", SEED, "--check", 8, "--out", out, "--json"),
    )
    return Trained(done.result)


def changed(before: Graph, after: Graph, name: str) -> set[int]:
    """Input channels of a layer with other weights."""
    old, new = (np.asarray(next(weight_of(g, op).data for op in g.layers if op.name == name)) for g in (before, after))
    return {int(c) for c in np.flatnonzero((old != new).reshape(-1, old.shape[-1]).any(axis=0))}


def test_the_board_equals_the_reference(run: Trained) -> None:
    assert run.result["check"]["bit_exact"] and not [n for n in run.result["notes"] if "first" in n]


def test_the_largest_channels_have_moved_and_no_other(run: Trained) -> None:
    before, after = replace_head(read_model(MODEL), CLASSES), read_model(run.path("model"))
    for name, part in SLICES.items():
        norms = channel_norms(before, next(op for op in before.layers if op.name == name))
        count = len(norms) // part
        wanted = set(np.argsort(-norms, kind="stable")[:count].tolist())
        moved = changed(before, after, name)  # but for those whose input is always zero
        assert moved <= wanted and len(moved) >= 0.9 * count and not moved <= set(range(count))
    frozen = {op.name for op in before.layers[:-1]} - SLICES.keys()
    assert frozen and not any(changed(before, after, name) for name in frozen)


def test_the_exported_model_is_as_good_as_the_board(run: Trained, motion_files: Motions) -> None:
    after = run.result["accuracy"]["after"]
    for arguments in ((run.path("model"),), (MODEL, "--checkpoint", run.path("checkpoint"))):
        assert mcugrad("eval", *arguments, "--data", motion_files.held_out, "--board", "host", "--json").result["accuracy"] == after
    held_out = data.load(motion_files.held_out, read_model(run.path("model")))
    assert held_out.y is not None
    answers = oracle(run.bytes("model"), [x.reshape(read_model(MODEL).tensors[read_model(MODEL).input].shape) for x in held_out.x])
    assert float(np.mean(answers.reshape(len(held_out.y), -1).argmax(axis=1) == held_out.y)) == pytest.approx(after)


def test_a_checkpoint_knows_its_channels(run: Trained, tmp_path: Path) -> None:
    saved = read_checkpoint(run.path("checkpoint"))
    assert saved.channels == "norm"
    out = tmp_path / "again.tflite"
    assert mcugrad("export", MODEL, "--checkpoint", run.path("checkpoint"), "--out", out, "--json").code == 0
    assert out.read_bytes() == run.bytes("model")
    write_checkpoint(tmp_path / "first.ckpt", replace(saved, channels="first"))
    done = mcugrad("export", MODEL, "--checkpoint", tmp_path / "first.ckpt", "--out", tmp_path / "x.tflite")
    done.fails(6, "belongs to plan")


def test_a_checkpoint_without_the_word_trained_the_first_channels() -> None:
    assert Checkpoint(0, 0, "head", None, "xent", 2, 1, b"").channels == "first"


def test_plan_notes_the_layers_that_cannot_be_reordered() -> None:
    done = mcugrad("plan", MODEL, "--train", "head,weights:conv_0:1/2,weights:conv_3:1/2", "--channels", "norm", "--json")
    assert [n for n in done.result["notes"] if n.startswith("conv_0 trains its first ") and n.endswith("they are an input of the model")]
    assert not [n for n in done.result["notes"] if n.startswith("conv_3")]
