"""Faults at import and quantization that users of other systems met, from the file to the trained model.

The number is that of the project's list of faults, section A; test_faults_index.py says where each entry is tested.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
import tflite

from helpers.cli import mcugrad
from helpers.graphs import GraphBuilder, Int8, random_samples
from helpers.tflite_builder import ModelBuilder, one_layer
from helpers.tiny_graphs import one_linear, oracle
from mcugrad.exporter import write_tflite
from mcugrad.graph import Quant
from mcugrad.importer import import_tflite
from mcugrad.importer import tflite as importer
from mcugrad.native import NativeMachine
from mcugrad.paths import root
from mcugrad.pipeline import Compiled, compile_graph
from mcugrad.plan import decode
from mcugrad.proof.gradients import gradient_quality
from mcugrad.ref import Machine

SETTLE, MEASURE, LR = 8, 22, 0.002


def trains_alike(compiled: Compiled, samples: list[Int8], lr: float, classes: int) -> bytes:
    """Train C and reference on the samples, label after label, compare every step; the STATE at the end."""
    a, b = Machine(compiled.plan), NativeMachine(compiled.plan)
    a.tracing = b.tracing = True
    for k, x in enumerate(samples):
        assert a.train(x, k % classes, lr, 0.0) == b.train(x, k % classes, lr, 0.0)
        assert a.trace == b.trace and a.state == b.state, f"sample {k}"
        assert np.array_equal(a.predict(x), b.predict(x))
    return a.state


def gradients_are_good(compiled: Compiled, samples: list[Int8], classes: int) -> None:
    """C and reference agree, and the integer gradients are those of float once the exponents have settled."""
    assert len(samples) == SETTLE + MEASURE
    state = trains_alike(compiled, samples[:SETTLE], LR, classes)
    labels = np.arange(MEASURE) % classes
    for q in gradient_quality(compiled, state, np.stack(samples[SETTLE:]), labels, LR):
        assert q.samples >= MEASURE - 4 and q.good, q


# ---- 1: a fully connected layer with one scale per row ----------------------------------------------------------------

ROWS = (0.01, 0.1, 1.0)


def test_a01_forward_and_update_of_a_linear_layer_use_the_scale_of_the_row() -> None:
    """Forward is the interpreter's, to the bit; a step moves each row by lr · error · x in real units, whatever its scale."""
    graph = import_tflite(write_tflite(one_linear(ROWS)), "m")
    w = graph.tensors[1].data
    assert w is not None
    quiet = replace(graph.tensors[1], data=(w // 64).astype(np.int8))
    graph = replace(graph, tensors=(graph.tensors[0], quiet, *graph.tensors[2:]))
    compiled = compile_graph(graph, "weights:linear_0")
    samples = random_samples(graph, 12, 1)
    for machine in (Machine(compiled.plan), NativeMachine(compiled.plan)):
        expected = oracle(write_tflite(graph), list(samples)).reshape(len(samples), -1)
        assert np.array_equal([machine.predict(x) for x in samples], expected)
    weights = compiled.program.trained[0].weights
    assert weights is not None
    at, lr, seen = compiled.layout.offsets[weights], 0.05, set()
    x_quant = graph.tensors[graph.input].quant
    assert x_quant is not None
    for k, x in enumerate(samples):
        machine = Machine(compiled.plan)
        label = k % 3
        result = machine.train(x, label, lr, 0.0)
        if result.argmax == label or result.peak < 0.999:
            continue
        old, new = (np.frombuffer(s[at : at + 24], "<i2").reshape(3, 4) / 256 for s in (machine.plan.init, machine.state))
        real = lr * x_quant.scale[0] * (x.reshape(-1).astype(float) - x_quant.zero_point)
        np.testing.assert_allclose((new - old)[label] * ROWS[label], real, atol=0.02 * np.abs(real).max() + ROWS[label] / 256)
        seen.add(label)
    assert seen >= {0, 1}


# ---- 3: the scheme of a model by name ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "x", "w", "name"),
    [
        ("CONV_2D", "uint8", "uint8", "uint8 model"),
        ("FULLY_CONNECTED", "float32", "int8", r"hybrid \(dynamic range\) model"),
        ("FULLY_CONNECTED", "int16", "int8", "int16x8 model"),
        ("FULLY_CONNECTED", "float32", "float32", "float model"),
    ],
)
def test_a03_every_scheme_ends_with_exit_3_its_name_and_how_to_export_again(tmp_path: Path, code: str, x: str, w: str, name: str) -> None:
    path = tmp_path / "m.tflite"
    path.write_bytes(one_layer(code, x, w))
    for command in ("plan", "build"):
        out = ("--out", tmp_path / "out") if command == "build" else ()
        mcugrad(command, path, *out).fails(3, name, "TFLITE_BUILTINS_INT8")


def test_a03_an_int8_model_is_planned(tmp_path: Path) -> None:
    path = tmp_path / "m.tflite"
    path.write_bytes(one_layer("FULLY_CONNECTED", "int8", "int8"))
    assert mcugrad("plan", path, "--board", "host", "--json").result


# ---- 5: a pruned channel ----------------------------------------------------------------------------------------------


def test_a05_a_channel_with_scale_0_is_never_updated_and_is_listed() -> None:
    """s_x / s_W of that channel would be infinite; its update is 0, everything stays finite, and the plan says so."""
    m, rng = ModelBuilder(), np.random.default_rng(5)
    x = m.tensor("x", (1, 5, 5, 3), quant=Quant((0.05,), -3))
    w = rng.integers(-127, 128, (1, 3, 3, 3), dtype=np.int8)
    y = m.dwconv2d(x, w, (0.02, 0.0, 0.03), np.array([10, 20, 30], np.int32), Quant((0.1,), 11))
    y = m.mean(y, Quant((0.05,), 2))
    y = m.linear(y, rng.integers(-127, 128, (3, 3), dtype=np.int8), (0.01,), np.zeros(3, np.int32), Quant((0.1,), 0))
    graph = import_tflite(m.finish([x], [y]), "m")
    compiled = compile_graph(graph, "all")
    assert any("dwconv_0" in note and "1" in note for note in compiled.program.notes), compiled.program.notes
    state = trains_alike(compiled, random_samples(graph, 12), 0.05, 3)
    layer = compiled.program.trained[0]
    for value, dtype in ((layer.weights, "<i2"), (layer.bias, "<i4")):
        assert value is not None
        at = compiled.layout.offsets[value]
        init = decode(compiled.plan).init
        old, new = (np.frombuffer(s[at : at + value.nbytes], dtype).reshape(3, -1) for s in (init, state))
        assert np.array_equal(old[1], new[1]) and not np.array_equal(old, new)
    for machine in (Machine(compiled.plan), NativeMachine(compiled.plan)):
        machine.state = state
        assert np.isfinite(machine.train(random_samples(graph, 1)[0], 0, 0.05, 0.0).loss)


# ---- 7: a multiplier of 1 and more ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("out", "reach"), [(0.1, 20), (2**-12, 0)])
def test_a07_backward_through_an_effective_multiplier_above_1(out: float, reach: int) -> None:
    """0.5 · 0.5 / 0.1 = 2.5, and 1024: nearly every output is cut off there. C is the reference; unclamped, the gradients are good."""
    m, rng = ModelBuilder(), np.random.default_rng(7)
    x = m.tensor("x", (1, 3, 3, 2), quant=Quant((0.5,), 0))
    y = m.conv2d(x, np.array([[[[1, -1]]], [[[0, 1]]]], np.int8), (0.5,), np.array([0, 1], np.int32), Quant((out,), 0))
    y = m.linear(y, rng.integers(-127, 128, (3, 18), dtype=np.int8), (0.01,), np.zeros(3, np.int32), Quant((0.5,), 0))
    compiled = compile_graph(import_tflite(m.finish([x], [y]), "m"), "all")
    top = reach or 128
    samples = [rng.integers(-top, top, (1, 3, 3, 2)).astype(np.int8) for _ in range(SETTLE + MEASURE)]
    if reach:
        gradients_are_good(compiled, samples, 3)
    else:
        trains_alike(compiled, samples, LR, 3)


# ---- 10: a convolution of a grey image written as a depthwise one -----------------------------------------------------


@pytest.mark.parametrize("multiplier", [1, 2, 16])
def test_a10_gradients_of_a_depthwise_layer_on_a_grey_image(multiplier: int) -> None:
    b = GraphBuilder((1, 28, 28, 1), multiplier, samples=2)
    y = b.dwconv(b.input, 2, (3, 3), stride=(2, 2))
    y = b.dwconv(b.point(y, 1), multiplier, stride=(2, 2))
    graph = b.finish(b.linear(b.pool(y, (7, 7), (7, 7)), 3))
    gradients_are_good(compile_graph(graph, "all"), random_samples(graph, SETTLE + MEASURE, 2), 3)


# ---- 15: an op without gradient ---------------------------------------------------------------------------------------


def test_a15_an_op_without_gradient_is_named_with_the_cut_that_is_possible(tmp_path: Path) -> None:
    b = GraphBuilder((1, 4, 4, 2), 1)
    y = b.conv(b.input, 3)
    y = b.minmax(y, b.mean(y, keep_dims=True), largest=True)
    path = tmp_path / "m.tflite"
    path.write_bytes(write_tflite(b.finish(b.linear(b.mean(y), 4))))
    common = ("plan", path, "--board", "host", "--json")
    assert mcugrad(*common, "--train", "head").result
    error = mcugrad(*common, "--train", "all").object["error"]
    assert error["code"] == 3 and "maximum_0 has no gradient" in error["text"]
    assert "train only layers behind" in error["hint"]
    table = mcugrad("ops", "--json").result["ops"]
    assert all({"forward", "error", "weights"} <= set(row) for row in table)


# ---- 17: nothing leaves the command line as a traceback ---------------------------------------------------------------


@pytest.mark.parametrize("defect", [NotImplementedError("abs"), KeyError("abs"), AssertionError(), IndexError(3)])
def test_a17_a_defect_in_an_op_handler_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, defect: Exception) -> None:
    def fail(*_: object) -> NoReturn:
        raise defect

    path = tmp_path / "m.tflite"
    path.write_bytes(write_tflite(one_linear()))
    readers: Mapping[str, Callable[..., object]] = importer._READERS
    monkeypatch.setattr(importer, "_READERS", dict.fromkeys(readers, fail))
    for command in ("inspect", "plan"):
        mcugrad(command, path).fails(1, f"internal error, {type(defect).__name__}", "please report it")


def test_a17_an_unknown_operator_is_no_defect(tmp_path: Path) -> None:
    m = ModelBuilder()
    x, y = (m.tensor(name, (1, 4), quant=Quant((0.5,))) for name in "xy")
    m.op(tflite.BuiltinOperator.ABS, [x], [y])
    path = tmp_path / "m.tflite"
    path.write_bytes(m.finish([x], [y]))
    for command in ("inspect", "plan"):
        mcugrad(command, path).fails(3, "op 0 ABS")


# ---- 24: what is int8 and what is not ---------------------------------------------------------------------------------


def border(ports: list[dict[str, object]]) -> list[tuple[object, object]]:
    return [(p["dtype"], p["scale"] is not None and p["zero_point"] is not None) for p in ports]


def test_a24_inspect_shows_types_the_share_of_int8_and_the_border(tmp_path: Path) -> None:
    result = mcugrad("inspect", root() / "examples" / "watch" / "watch_base.tflite", "--json").result
    assert result["int8_mac_share"] == 1
    assert border(result["inputs"]) == border(result["outputs"]) == [("int8", True)]
    tensors = [t for op in result["ops"] for t in (*op["inputs"], *op["outputs"], *filter(None, [op["weights"]]))]
    assert {t["dtype"] for t in tensors} == {"int8"} and all(t["scale"] for t in tensors)
    path = tmp_path / "m.tflite"
    path.write_bytes(one_layer("FULLY_CONNECTED", "float32", "float32"))
    result = mcugrad("inspect", path, "--json").result
    assert result["int8_mac_share"] == 0 and border(result["inputs"]) == [("float32", False)]
    assert "0 % of the multiply-accumulates are int8: mcugrad quantize" in mcugrad("inspect", path).out
