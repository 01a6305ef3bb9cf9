"""The demo's base model is what its card says, its data is cut fairly, and the device's arithmetic learns the new wearer."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from helpers.shared import shared
from mcugrad.data import DataSet, load
from mcugrad.errors import DataError, UnavailableError
from mcugrad.graph import Activation, Conv2D, DwConv2D, Graph
from mcugrad.importer import read_model
from mcugrad.native import NativeMachine
from mcugrad.paths import root
from mcugrad.pipeline import compile_model
from mcugrad.training.recipe import Recipe

WATCH = root() / "examples" / "watch"
MODEL = WATCH / "watch_base.tflite"
ONE_POINT = 1.0
FILES = ("base.npz", "new_wearer.npz", "held_out.npz")


def _example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("watch_data", WATCH / "data.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["watch_data"] = module
    spec.loader.exec_module(module)
    return module


watch = _example()
card = json.loads((WATCH / "model.json").read_text())


@pytest.fixture(scope="module")
def graph() -> Graph:
    return read_model(MODEL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        watch.dataset_path()
    except UnavailableError as error:
        pytest.skip(str(error))
    out: Path = tmp_path_factory.mktemp("watch")
    watch.write_files(out)
    return out


@pytest.fixture(scope="module")
def wearer(folder: Path, graph: Graph) -> tuple[DataSet, DataSet]:
    return load(folder / "new_wearer.npz", graph), load(folder / "held_out.npz", graph)


def _accuracy(machine: NativeMachine, data: DataSet) -> float:
    assert data.y is not None
    return 100 * float(np.mean([machine.predict(x).argmax() == y for x, y in zip(data.x, data.y, strict=True)]))


# ---- the model ----------------------------------------------------------------------------------------------------------


def test_the_committed_model_is_the_one_on_its_card() -> None:
    content = MODEL.read_bytes()
    assert hashlib.sha256(content).hexdigest() == card["sha256"]
    assert len(content) == card["bytes"] <= 64 * 1024
    assert card["wearer"] == watch.NEW_WEARER
    assert card["on_device"]["train"] == (WATCH / "scheme.txt").read_text().strip()


def test_the_model_is_int8_throughout(graph: Graph) -> None:
    assert graph.tensors[graph.input].shape == (1, watch.WINDOW, 1, len(watch.CHANNELS))
    output = graph.tensors[graph.output]
    assert output.shape == (1, len(card["classes"]))
    assert output.quant is not None and (output.quant.scale, output.quant.zero_point) == ((1 / 256,), -128)
    for op in graph.ops:
        assert all(graph.tensors[t].dtype == np.int8 for t in (op.inputs[0], *op.outputs)), op.name
    assert [op.name for op in graph.layers if isinstance(op.kind, Conv2D)] == [f"conv_{i}" for i in range(5)]


def test_layers_keep_the_rules_of_int8_quantization(graph: Graph) -> None:
    for op in graph.layers:
        x, w, b, y = (graph.tensors[t] for t in (*op.inputs, *op.outputs))
        assert x.quant and w.quant and b.quant and y.quant and w.data is not None and b.data is not None
        assert w.quant.zero_point == 0 and int(np.abs(w.data.astype(int)).max()) == 127
        assert b.dtype == np.int32
        expected = [np.float32(x.quant.scale[0]) * np.float32(s) for s in w.quant.scale]
        np.testing.assert_array_equal(np.float32(b.quant.scale), expected)
        if isinstance(op.kind, Conv2D | DwConv2D):
            assert w.quant.per_channel and op.kind.activation is Activation.RELU and y.quant.zero_point == -128


def test_the_interpreter_finds_the_accuracy_on_the_card(wearer: tuple[DataSet, DataSet]) -> None:
    runtime = pytest.importorskip("tflite_micro").runtime
    interpreter = runtime.Interpreter.from_file(str(MODEL))
    _, held_out = wearer
    assert held_out.y is not None
    right = 0
    for x, y in zip(held_out.x, held_out.y, strict=True):
        interpreter.set_input(x[None], 0)
        interpreter.invoke()
        right += int(interpreter.get_output(0).argmax() == y)
    assert abs(100 * right / len(held_out) - card["accuracy_wearer"]["int8_before"]) <= ONE_POINT


@pytest.mark.parametrize("seed", [1, 2])
def test_the_wearer_gains_what_the_card_promises(wearer: tuple[DataSet, DataSet], seed: int) -> None:
    new, held_out = wearer
    assert new.y is not None
    plan = card["on_device"]
    machine = NativeMachine(compile_model(MODEL, plan["train"]).plan)
    assert abs(_accuracy(machine, held_out) - card["accuracy_wearer"]["int8_before"]) <= ONE_POINT
    recipe = Recipe(plan["epochs"], plan["lr"], plan["schedule"], plan["skip"], seed)
    steps = recipe.epochs * len(new)
    for step, n in enumerate(recipe.order(len(new))):
        machine.train(new.x[n], int(new.y[n]), recipe.learning_rate(step, steps), recipe.skip)
    after = _accuracy(machine, held_out)
    assert after >= card["accuracy_wearer"]["int8_before"] + 7
    assert abs(after - card["accuracy_wearer"]["simulated_after"]) <= 2 * ONE_POINT


# ---- the data -----------------------------------------------------------------------------------------------------------


def _windows(path: Path) -> set[bytes]:
    with np.load(path) as file:
        return {x.tobytes() for x in file["x"]}


def test_no_window_is_in_two_files_and_none_is_lost(folder: Path) -> None:
    parts = [_windows(folder / name) for name in FILES]
    x, _, subject, _ = watch.load_windows()
    assert [len(p) for p in parts] == list(card["windows"].values())
    assert set.union(*parts) == {w.tobytes() for w in x} and sum(map(len, parts)) == len(x)
    assert parts[1] | parts[2] == {w.tobytes() for w in x[subject == watch.NEW_WEARER]}


def test_both_halves_of_the_wearer_hold_every_class_alike(folder: Path) -> None:
    counts = []
    for name in FILES[1:]:
        with np.load(folder / name) as file:
            counts.append(np.bincount(file["y"], minlength=len(card["classes"])))
    assert int(np.min(counts)) >= 8
    assert int(np.abs(counts[0] - counts[1]).max()) <= watch.BLOCK


@pytest.mark.parametrize("divide", [watch.alternate_blocks, watch.halves_in_time])
def test_a_recording_is_divided_without_loss(divide) -> None:
    for length in range(1, 20):
        windows = np.arange(length, dtype=np.float32)[:, None, None]
        for index in (0, 1):
            first, second = divide(windows, index)
            assert sorted([*first.ravel(), *second.ravel()]) == list(range(length))
            assert abs(len(first) - len(second)) <= watch.BLOCK


def test_halves_in_time_train_on_the_past() -> None:
    first, second = watch.halves_in_time(np.arange(13, dtype=np.float32)[:, None, None], 0)
    assert first.max() < second.min()


def test_writing_twice_gives_the_same_samples(folder: Path, tmp_path: Path) -> None:
    watch.write_files(tmp_path)
    for name in FILES:
        with np.load(folder / name) as a, np.load(tmp_path / name) as b:
            np.testing.assert_array_equal(a["x"], b["x"])
            np.testing.assert_array_equal(a["y"], b["y"])


def test_the_windows_are_those_prepared_independently(folder: Path) -> None:
    x, y, subject, classes = watch.load_windows()
    with np.load(shared("datasets/imu_watch_shoulder_50hz.npz")) as other:
        np.testing.assert_array_equal(y, other["y"])
        np.testing.assert_array_equal(subject, other["subject"])
        np.testing.assert_allclose(x * watch.FULL_SCALE, other["x"], rtol=1e-3, atol=1e-3)
        assert list(classes) == other["classes"].tolist()


def test_seglearn_is_read_but_never_imported(folder: Path) -> None:
    assert "seglearn" not in sys.modules


def test_absent_data_names_the_extra(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "argv", ["data.py", "--out", str(tmp_path / "out")])
    assert watch.main() == 69
    said = capsys.readouterr().err
    assert "pip install" in said and "mcugrad[demo]" in said
    assert not (tmp_path / "out").exists()


class _Trap:
    """Unpickling it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


def test_another_file_is_refused_before_it_is_unpickled(tmp_path: Path) -> None:
    trap = tmp_path / "watch_dataset.npy"
    np.save(trap, np.array([_Trap(tmp_path / "sprung")], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match="sha256"):
        watch.load_windows(trap)
    assert not (tmp_path / "sprung").exists()
    np.load(trap, allow_pickle=True)
    assert (tmp_path / "sprung").exists()
