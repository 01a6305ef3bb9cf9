"""`mcugrad train`, from one .tflite file to another: the same numbers on every board, in the reference, in TensorFlow Lite."""

from __future__ import annotations

import json
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from e2e.conftest import EPOCHS, HELD_OUT_WINDOWS, LR, MODEL, QEMU, SCHEME, SEED, TRAIN_WINDOWS, Motions, Train, Trained
from helpers.cli import mcugrad
from helpers.motions import CLASSES, motions
from helpers.tiny_graphs import oracle, small_net
from mcugrad import data
from mcugrad.board import open_board
from mcugrad.exporter import write_tflite
from mcugrad.link import Session
from mcugrad.lower import Options
from mcugrad.pipeline import Compiled, compile_model
from mcugrad.ref import Machine
from mcugrad.training.checkpoint import read_checkpoint, write_checkpoint
from mcugrad.training.recipe import Recipe

BOARDS = ["host", pytest.param(QEMU, marks=pytest.mark.qemu)]
GAIN = 0.6
"""A fresh head guesses (1/7); after five epochs it must be right on this much more of the held-out windows."""

RATIOS = "head,weights:conv_3:1/2,weights:conv_2:1/4"


def compiled(scheme: str = SCHEME, ws: int = 2) -> Compiled:
    return compile_model(MODEL, scheme, CLASSES, Options(ws, SEED))


def reference_state(plan: Compiled, file: Path) -> bytes:
    """STATE after the same run in NumPy."""
    dataset = data.load(file, plan.model)
    assert dataset.y is not None
    recipe = Recipe(EPOCHS, LR, "cosine", 0.1, SEED)
    order = list(recipe.order(len(dataset)))
    machine = Machine(plan.plan)
    for step, i in enumerate(order):
        machine.train(dataset.x[i], int(dataset.y[i]), recipe.learning_rate(step, len(order)), recipe.skip)
    return machine.state


def without_ticks(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in step.items() if k != "ticks"} for step in steps]


@pytest.mark.qemu
@pytest.mark.parametrize("rounding", ["residual", "stochastic"])
def test_both_boards_leave_the_same_bytes(train: Train, rounding: str) -> None:
    native, emulated = train("host", rounding), train(QEMU, rounding)
    assert native.bytes("checkpoint") == emulated.bytes("checkpoint")
    assert native.bytes("model") == emulated.bytes("model")
    assert without_ticks(native.events("step")) == without_ticks(emulated.events("step"))
    assert native.events("evaluation") == emulated.events("evaluation")


@pytest.mark.parametrize(
    ("rounding", "ws", "scheme"),
    [("residual", 2, SCHEME), ("stochastic", 1, SCHEME), ("residual", 2, RATIOS), ("stochastic", 1, RATIOS)],
)
def test_state_is_the_reference_s(train: Train, motion_files: Motions, rounding: str, ws: int, scheme: str) -> None:
    run = train("host", rounding, scheme)
    state = reference_state(compiled(scheme, ws), motion_files.train)
    assert read_checkpoint(run.path("checkpoint")).state == state
    assert state != Machine(compiled(scheme, ws).plan).state


@pytest.mark.parametrize("rounding", ["residual", "stochastic"])
def test_accuracy_rises(train: Train, rounding: str) -> None:
    accuracy = train("host", rounding, epochs=5).result["accuracy"]
    assert accuracy["before"] == pytest.approx(1 / CLASSES)
    assert accuracy["after"] >= accuracy["before"] + GAIN


def test_a_rerun_is_the_same(train: Train) -> None:
    first, second = train("host"), train("host", run=2)
    assert first.bytes("checkpoint") == second.bytes("checkpoint") and first.bytes("model") == second.bytes("model")
    assert without_ticks(first.events("step")) == without_ticks(second.events("step"))
    assert first.result["accuracy"] == second.result["accuracy"]


@pytest.mark.qemu
def test_an_emulated_rerun_is_the_same(train: Train) -> None:
    """Instructions but for the interrupts of the next sample, which comes while a step is computed: 0.05 % of them here."""
    first, second = train(QEMU), train(QEMU, run=2)
    assert first.bytes("checkpoint") == second.bytes("checkpoint")
    ours, theirs = ([{k: v for k, v in e.items() if k != "ticks"} for e in run.events("step")] for run in (first, second))
    assert ours == theirs
    for figure in ("link", "skipped"):
        assert first.result[figure] == second.result[figure]
    for part in ("arena", "runtime"):  # an interrupt may come at the deepest stack, or not
        assert first.result["ram_measured"][part] == second.result["ram_measured"][part]
    assert first.result["instructions_per_step"] == pytest.approx(second.result["instructions_per_step"], rel=0.005)


def test_another_seed_is_another_run(train: Train, motion_files: Motions, tmp_path: Path) -> None:
    out = tmp_path / "trained.tflite"
    arguments = ("--data", motion_files.train, "--board", "host", "--classes", CLASSES, "--train", SCHEME, "--epochs", 1, "--seed", 6)
    done = mcugrad("train", MODEL, *arguments, "--out", out, "--json")
    assert done.result["accuracy"] is None
    assert out.read_bytes() != train("host").bytes("model")


@pytest.mark.parametrize("board", BOARDS)
def test_json_has_every_figure(train: Train, board: str) -> None:
    result = train(board).result
    unit = {"host": "microseconds", QEMU: "instructions"}[board]
    assert result["board"] == board and result["timing"] == "emulated"
    assert set(result["accuracy"]) == {"before", "after"}
    assert result["steps"] == TRAIN_WINDOWS * EPOCHS and 0 <= result["skipped"] < result["steps"]
    assert result[f"{unit}_per_step"] > 0 and result["seconds"] > 0
    assert set(result["link"]) == {"bytes_sent", "bytes_received", "bytes_per_sample"}
    assert 768 < result["link"]["bytes_per_sample"] < 1000
    assert set(result["plan"]["ram"]) == {"arena", "state", "io", "stack", "runtime", "total"}
    assert set(result["plan"]["flash"]) >= {"plan", "const", "firmware"}
    assert set(result["plan"]["macs"]) == {"forward", "backward"}
    assert result["plan"]["arena_lower_bound"] <= result["plan"]["ram"]["arena"] and result["plan"]["peak_step"]
    assert set(result["paths"]) == {"model", "checkpoint", "log", "curve"}
    assert all(Path(p).stat().st_size for p in result["paths"].values())


@pytest.mark.qemu
def test_measured_ram_is_within_the_plan(train: Train) -> None:
    result = train(QEMU).result
    planned, measured = result["plan"]["ram"], result["ram_measured"]
    assert 0 < measured["arena"] <= planned["arena"]
    assert 0 < measured["stack"] < planned["stack"]
    assert measured["total"] <= planned["total"] <= result["plan"]["ram_limit"]


def test_the_run_log_is_json_lines(train: Train) -> None:
    run = train("host")
    events = [json.loads(line) for line in run.path("log").read_text(encoding="utf-8").splitlines()]
    kinds = [event["event"] for event in events]
    assert kinds == ["start", "evaluation", *["step"] * (TRAIN_WINDOWS * EPOCHS), "evaluation", "end"]
    assert events[0]["recipe"]["seed"] == SEED
    assert [event["when"] for event in events if event["event"] == "evaluation"] == ["before", "after"]
    assert [event["step"] for event in events if event["event"] == "step"] == list(range(TRAIN_WINDOWS * EPOCHS))
    assert {k: v for k, v in events[-1].items() if k != "event"} == run.result


def test_the_loss_curve_is_a_picture(train: Train) -> None:
    run = train("host")
    picture = ElementTree.parse(run.path("curve")).getroot()
    name = "{http://www.w3.org/2000/svg}"
    assert picture.tag == f"{name}svg"
    assert len(picture.findall(f"{name}circle")) == TRAIN_WINDOWS * EPOCHS and len(picture.findall(f"{name}polyline")) == 1


def test_people_see_the_same_figures(motion_files: Motions, tmp_path: Path) -> None:
    """Paths are printed whole and as they are, even where they look like markup."""
    folder = tmp_path / "a folder with a long name, with [brackets] and [/closing] ones, longer than a terminal is wide" / ":smile:"
    files = ("--data", motion_files.train, "--eval", motion_files.held_out, "--out", folder / "trained.tflite")
    done = mcugrad("train", MODEL, *files, "--board", "host", "--classes", CLASSES, "--epochs", 1)
    assert done.code == 0 and done.err == ""
    assert f"accuracy on {HELD_OUT_WINDOWS} held-out samples: 14.29 % before" in done.out
    for text in ("training plan for host", "RAM in all", "bytes a sample on the wire"):
        assert text in done.out
    assert "train.npz: x is float32, taken as real values, quantized with scale 0.0078125 and zero point 0" in done.out
    for name, suffix in (("model", "tflite"), ("checkpoint", "ckpt"), ("log", "jsonl"), ("curve", "svg")):
        assert f"{name}: {folder / 'trained'}.{suffix}\n" in done.out


def test_a_scheme_file_is_the_same_scheme(train: Train, motion_files: Motions, tmp_path: Path) -> None:
    file = tmp_path / "scheme.json"
    file.write_text(json.dumps({"head": True, "bias": 4, "weights": {"conv_4": 1.0}}), encoding="utf-8")
    assert train("host", scheme=str(file)).bytes("checkpoint") == train("host").bytes("checkpoint")


@pytest.mark.parametrize("board", BOARDS)
def test_tensorflow_lite_gives_the_board_s_outputs(train: Train, motion_files: Motions, board: str) -> None:
    run, plan = train(board), compiled()
    real = data.load(motion_files.held_out, plan.model).x[:15]
    noise = np.random.default_rng(3).integers(-128, 128, (15, *real.shape[1:])).astype(np.int8)
    x = np.concatenate([real, noise])
    with open_board(board) as (_, line):
        session = Session(line)
        session.hello()
        session.load_plan(plan.plan)
        session.write_state(read_checkpoint(run.path("checkpoint")).state)
        outputs = []
        for sample in x:
            session.sample(sample)
            outputs.append(session.predict().output)
    expected = oracle(run.bytes("model"), x[:, None])
    np.testing.assert_array_equal(np.stack(outputs), expected.reshape(30, CLASSES))
    assert len(np.unique(expected.reshape(30, CLASSES), axis=0)) > 10


@pytest.mark.parametrize(
    ("board", "rounding"), [("host", "residual"), ("host", "stochastic"), pytest.param(QEMU, "residual", marks=pytest.mark.qemu)]
)
def test_eval_of_model_and_checkpoint_agree(train: Train, motion_files: Motions, board: str, rounding: str) -> None:
    """All three are the same predictions: the trained file, the checkpoint, and those that the run itself has made."""
    run = train("host", rounding)
    common = ("--data", motion_files.held_out, "--board", board, "--json")
    of_model = mcugrad("eval", run.path("model"), *common).result
    of_checkpoint = mcugrad("eval", MODEL, "--checkpoint", run.path("checkpoint"), *common).result
    after = run.events("evaluation")[-1]
    assert of_model["confusion"] == of_checkpoint["confusion"] == after["confusion"]
    assert of_model["accuracy"] == of_checkpoint["accuracy"] == run.result["accuracy"]["after"]
    assert np.sum(of_model["confusion"]) == HELD_OUT_WINDOWS


@pytest.mark.parametrize("scheme", [SCHEME, RATIOS, "head,weights:conv_1:1/3,weights:dwconv_2:1/5"])
@pytest.mark.parametrize("rounding", ["residual", "stochastic"])
def test_export_gives_the_trained_file_again(train: Train, tmp_path: Path, rounding: str, scheme: str) -> None:
    run, out = train("host", rounding, scheme), tmp_path / "again.tflite"
    done = mcugrad("export", MODEL, "--checkpoint", run.path("checkpoint"), "--out", out, "--json")
    assert done.result["bytes"] == out.stat().st_size
    assert out.read_bytes() == run.bytes("model")


def test_a_trained_file_can_be_trained_again(train: Train, motion_files: Motions, tmp_path: Path) -> None:
    run, out = train("host"), tmp_path / "second.tflite"
    files = ("--data", motion_files.train, "--eval", motion_files.held_out, "--out", out)
    done = mcugrad("train", run.path("model"), *files, "--board", "host", "--train", SCHEME, "--epochs", 1, "--lr", 0.001, "--json")
    assert done.result["accuracy"]["before"] == run.result["accuracy"]["after"]


@pytest.fixture(scope="module")
def other_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model without the layers that the scheme names."""
    path = tmp_path_factory.mktemp("other") / "other.tflite"
    path.write_bytes(write_tflite(small_net()))
    return path


@pytest.mark.parametrize("command", ["export", "eval"])
def test_a_checkpoint_of_another_model(train: Train, motion_files: Motions, tmp_path: Path, other_model: Path, command: str) -> None:
    last = ("--out", tmp_path / "x.tflite") if command == "export" else ("--data", motion_files.held_out, "--board", "host")
    done = mcugrad(command, other_model, "--checkpoint", train("host").path("checkpoint"), *last)
    hashes = [f"{zlib.crc32(path.read_bytes()):08x}" for path in (MODEL, other_model)]
    done.fails(6, *hashes, "give the model it was trained from")
    assert not (tmp_path / "x.tflite").exists()


def test_a_checkpoint_of_another_plan(train: Train, tmp_path: Path) -> None:
    """The scheme is part of a checkpoint: with another one it belongs to no plan, and says so by both hashes."""
    saved = read_checkpoint(train("host").path("checkpoint"))
    write_checkpoint(tmp_path / "odd.ckpt", replace(saved, scheme="head"))
    done = mcugrad("export", MODEL, "--checkpoint", tmp_path / "odd.ckpt", "--out", tmp_path / "x.tflite")
    made = zlib.crc32(compiled("head").plan[20:])
    done.fails(6, f"{saved.plan_crc:08x}", f"{made:08x}", "use the version of mcugrad that trained it")


@pytest.mark.parametrize("damage", ["empty", "cut", "flipped", "foreign", "missing"])
def test_a_damaged_checkpoint(train: Train, tmp_path: Path, damage: str) -> None:
    raw = train("host").bytes("checkpoint")
    path = tmp_path / "damaged.ckpt"
    contents = {"empty": b"", "cut": raw[:-1], "flipped": raw[:200] + bytes([raw[200] ^ 1]) + raw[201:], "foreign": MODEL.read_bytes()}
    if damage != "missing":
        path.write_bytes(contents[damage])
    done = mcugrad("export", MODEL, "--checkpoint", path, "--out", tmp_path / "x.tflite")
    done.fails(6, "damaged.ckpt", "No such file" if damage == "missing" else "not a whole checkpoint")


def test_the_gradient_check_is_part_of_the_run(motion_files: Motions, tmp_path: Path) -> None:
    files = ("--data", motion_files.train, "--out", tmp_path / "trained.tflite")
    done = mcugrad("train", MODEL, *files, "--board", "host", "--classes", CLASSES, "--train", SCHEME, "--check", 8, "--json")
    check = done.result["check"]
    assert check["bit_exact"] and check["samples"] == 16 and check["outputs_compared"] > 200
    assert {(g["layer"], g["what"]) for g in check["gradients"]} >= {("linear_0", "w"), ("linear_0", "b"), ("conv_4", "w")}


def test_float_and_int8_data_are_the_same_run(train: Train, motion_files: Motions, tmp_path: Path) -> None:
    """The host's quantization is the model's: the file with int8 samples gives the run of the float file, byte for byte."""
    x, y = motions(TRAIN_WINDOWS, 1)
    quantized = data.load(motion_files.train, compiled().model).x
    np.savez(tmp_path / "int8.npz", x=quantized.reshape(x.shape), y=y.astype(np.uint8))
    out = tmp_path / "trained.tflite"
    arguments = ("--board", "host", "--classes", CLASSES, "--train", SCHEME, "--epochs", EPOCHS, "--lr", LR, "--seed", SEED)
    run = Trained(mcugrad("train", MODEL, "--data", tmp_path / "int8.npz", *arguments, "--out", out, "--json").result)
    assert run.bytes("model") == train("host").bytes("model")


def test_the_loss_that_the_user_names(tmp_path: Path) -> None:
    """Mean squared error trains on every sample: its errors fade with its success, so ``--skip`` is not for it."""
    x, labels = motions(TRAIN_WINDOWS, 1)
    file = tmp_path / "wanted.npz"
    np.savez(file, x=x, y=np.eye(CLASSES, dtype=np.float32)[labels])
    words = ("train", MODEL, "--data", file, "--board", "host", "--classes", str(CLASSES), "--epochs", "4", "--lr", "1", "--skip", "0.5")
    done = mcugrad(*words, "--loss", "mse", "--out", tmp_path / "t.tflite", "--json")
    run = Trained(done.result)
    assert run.result["loss"] == "mse"
    assert run.events("start")[0]["recipe"]["skip"] == 0.0
    steps = run.events("step")
    assert not any(step["skipped"] for step in steps)
    first, last = (np.mean([step["loss"] for step in part]) for part in (steps[:TRAIN_WINDOWS], steps[-TRAIN_WINDOWS:]))
    assert last < 0.7 * first
    mcugrad(*words, "--loss", "bce").fails(3, "the model ends in softmax_0")
