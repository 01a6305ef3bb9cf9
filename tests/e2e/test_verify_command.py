"""`mcugrad verify` and `mcugrad ops`: what they say of a right model, and how a wrong one comes to light."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from e2e.conftest import MODEL, QEMU
from helpers.cli import mcugrad
from helpers.graphs import GraphBuilder, Int8, mixed, random_samples, with_data
from helpers.kinds import BODIES, with_op
from mcugrad.autodiff.rules import RULES
from mcugrad.exporter import model_bytes, write_tflite
from mcugrad.graph import Conv2D, Dequantize, DwConv2D, Graph, Linear, OpKind, Quantize
from mcugrad.importer.names import operator_names
from mcugrad.pipeline import Compiled, compile_graph

FEW = ("--inputs", 3, "--json")

COMMAND = importlib.import_module("mcugrad.cli.verify")
"""The module; the package's attribute of that name is the command."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("verify") / "mixed.tflite"
    write_tflite(mixed(1), path)
    return path


def wrongly_compiled(path: Path, scheme: str | None) -> Compiled:
    """The plan of ``mixed`` with other weights in conv_1."""
    graph = mixed(1)
    op = next(op for op in graph.layers if op.name == "conv_1")
    w = np.array(graph.tensors[op.inputs[1]].data)
    return compile_graph(with_data(graph, {op.inputs[1]: -w}), scheme)


@pytest.mark.parametrize("oracle, name", [("auto", "tflite-micro"), ("tflm", "tflite-micro"), ("litert", "LiteRT reference kernels")])
def test_a_right_model(model: Path, oracle: str, name: str) -> None:
    result = mcugrad("verify", model, "--oracle", oracle, *FEW).result
    assert (result["oracle"], result["tolerance"], result["inputs"], result["layers"]) == (name, 0, 6, [])
    assert [(c["executor"], c["inputs"], c["values"], c["equal"], c["largest"]) for c in result["executors"]] == [
        ("reference", 6, 24, 24, 0),
        ("host C", 6, 24, 24, 0),
    ]


@pytest.mark.parametrize("board", ["host", pytest.param(QEMU, marks=pytest.mark.qemu)])
def test_a_right_model_on_a_board(model: Path, board: str) -> None:
    result = mcugrad("verify", model, "--board", board, *FEW).result
    assert [(c["executor"], c["equal"]) for c in result["executors"]] == [("reference", 24), ("host C", 24), (board, 24)]


def test_several_inputs_and_outputs(tmp_path: Path) -> None:
    b = GraphBuilder((1, 3, 5, 2), 3)
    y = b.mul(b.new_input((1, 1, 1, 2), zero_point=11), b.conv(b.input, 2))
    write_tflite(b.finish(b.slice(y, (0, 0, 0, 1), (1, 3, 3, 1)), y), tmp_path / "two.tflite")
    result = mcugrad("verify", tmp_path / "two.tflite", "--board", "host", *FEW).result
    assert [c["equal"] for c in result["executors"]] == [6 * 39] * 3


def test_every_layer(model: Path) -> None:
    layers = mcugrad("verify", model, "--layerwise", *FEW).result["layers"]
    assert [layer["op"] for layer in layers] == [op.name for op in compile_graph(mixed(1), None).train.graph.ops]
    assert all(layer["differing"] == 0 for layer in layers)


def test_the_text_for_people(model: Path) -> None:
    done = mcugrad("verify", model, "--layerwise", "--inputs", 1)
    assert done.code == 0 and "against tflite-micro" in done.out and "host C" in done.out
    count = len(compile_graph(mixed(1), None).train.graph.ops)
    assert f"{count} layers equal LiteRT's reference kernels" in done.out


def test_samples_of_a_data_set_are_verified_too(model: Path, tmp_path: Path) -> None:
    x = np.stack([s[0] for s in random_samples(mixed(1), 5)])
    np.savez(tmp_path / "data.npz", x=x, y=np.zeros(5, np.int64))
    result = mcugrad("verify", model, "--data", tmp_path / "data.npz", "--inputs", 2, "--json").result
    assert result["inputs"] == 2 + 2 + 5


def test_the_example_is_exact(tmp_path: Path) -> None:
    result = mcugrad("verify", MODEL, "--layerwise", *FEW).result
    assert all(c["equal"] == c["values"] for c in result["executors"]) and len(result["layers"]) >= 5


def test_an_onnx_file_against_onnx_runtime(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    (tmp_path / "net.onnx").write_bytes(model_bytes(with_op("maxpool"), ".onnx"))
    result = mcugrad("verify", tmp_path / "net.onnx", *FEW).result
    assert result["oracle"] == "onnxruntime" and result["tolerance"] > 0
    assert all(c["largest"] <= result["tolerance"] for c in result["executors"])


# ---- wrong ones ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("oracle", ["tflm", "litert"])
def test_a_wrong_layer_ends_with_code_7_and_its_name(model: Path, oracle: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(COMMAND, "compile_model", wrongly_compiled)
    done = mcugrad("verify", model, "--oracle", oracle, "--inputs", 2)
    done.fails(7, r"reference differs from .* at input \d+: output \d by \d+", r"first in conv_1 \(conv_1\.y\), \d+ of \d+ values")
    error = mcugrad("verify", model, "--oracle", oracle, *FEW).object["error"]
    assert (error["code"], error["name"]) == (7, "verify") and "conv_1" in error["text"]


def test_a_wrong_layer_is_named_layer_by_layer(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(COMMAND, "compile_model", wrongly_compiled)
    mcugrad("verify", model, "--layerwise", "--inputs", 2).fails(7, r"conv_1 \(conv_1\.y\) is the first layer that differs from LiteRT")


def test_a_wrong_c_runtime_is_told_from_a_wrong_reference(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong:
        def __init__(self, plan: bytes) -> None:
            pass

        def predict(self, sample: Int8) -> Int8:
            return np.zeros(4, np.int8)

    monkeypatch.setattr(COMMAND, "NativeMachine", Wrong)
    mcugrad("verify", model, "--inputs", 2).fails(7, "host C differs from tflite-micro at input 0", "the reference computes every layer as")


def test_mistakes(model: Path, tmp_path: Path) -> None:
    mcugrad("verify", tmp_path / "none.tflite").fails(3, "No such file")
    mcugrad("verify", model, "--oracle", "ort").fails(2, "--oracle ort does not read .tflite files")
    (tmp_path / "cut.tflite").write_bytes(model.read_bytes()[:500])
    mcugrad("verify", tmp_path / "cut.tflite").fails(3, "cut.tflite")


# ---- ops ----------------------------------------------------------------------------------------------------------------


def rows() -> dict[str, dict[str, Any]]:
    return {row["op"]: row for row in mcugrad("ops", "--json").result["ops"]}


def test_the_table_has_every_op_once() -> None:
    found = mcugrad("ops", "--json").result["ops"]
    assert [row["op"] for row in found] == [kind.__name__ for kind in get_args(OpKind)]
    for row in found:
        assert set(row) == {"op", "forward", "error", "weights", "tflite", "onnx"} and row["forward"] is True
        assert row["tflite"] or row["onnx"], f"no model file has {row['op']}"


def test_the_table_says_what_the_rules_and_importers_say() -> None:
    table = rows()
    assert {kind for kind, row in table.items() if row["weights"]} == {k.__name__ for k in (Conv2D, DwConv2D, Linear)}
    assert {kind for kind, row in table.items() if row["error"]} == {k.__name__ for k in (*RULES, Quantize, Dequantize)}
    for file in ("tflite", "onnx"):
        for name, kinds in operator_names(file).items():
            assert [row["op"] for row in table.values() if name in row[file]] == [k.__name__ for k in get_args(OpKind) if k in kinds]


def test_every_op_that_is_said_to_have_an_error_is_trained_through_in_a_test() -> None:
    """The gradients of these graphs are compared with float ones in tests/unit/test_gradient_quality.py."""
    graphs: list[Graph] = [with_op(body, end) for body in BODIES for end in ("xent", "bce")]
    seen = {type(op.kind).__name__ for graph in graphs for op in graph.ops}
    assert {kind for kind, row in rows().items() if row["error"]} - {"Quantize", "Dequantize"} <= seen


def test_the_text_of_the_table() -> None:
    done = mcugrad("ops")
    assert done.code == 0 and "Conv2D" in done.out and "may stand before the deepest trained layer" in done.out
