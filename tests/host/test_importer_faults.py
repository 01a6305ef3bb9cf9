"""Faults that users of other systems met at import; the number is that of the project's list of faults, section A."""

from __future__ import annotations

import struct
import time
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import tflite

from helpers.meaning import evaluate
from helpers.shared import shared
from helpers.tflite_builder import ModelBuilder, one_layer
from helpers.tiny_graphs import ONE_OP, TinyNet, assert_same_graph, every_op, one_linear, oracle, oracle_all, random_inputs, random_samples
from mcugrad.errors import ModelError
from mcugrad.exporter import write_tflite
from mcugrad.graph import Activation, DwConv2D, Function, Graph, Quant
from mcugrad.graph.edit import input_of, int8_share, output_of, weight_of
from mcugrad.importer import import_tflite, read_model
from mcugrad.lower.quant import conv_requant, linear_requant

BUILTIN = tflite.BuiltinOperator


def refused(data: bytes, match: str) -> ModelError:
    with pytest.raises(ModelError, match=match) as caught:
        import_tflite(data, "m")
    assert caught.value.exit_code == 3 and caught.value.hint
    return caught.value


def changed(graph: Graph, index: int, **changes) -> bytes:
    tensors = list(graph.tensors)
    tensors[index] = replace(tensors[index], **changes)
    return write_tflite(replace(graph, tensors=tuple(tensors)))


# ---- A1: a fully connected layer with one scale per row ---------------------------------------------------------------


def test_fault_a1_every_row_of_a_linear_layer_has_its_own_scale() -> None:
    """Each output as the oracle computes it, from the row's own multiplier; one scale for all rows would be off by a factor of 100."""
    graph = import_tflite(write_tflite(one_linear((0.01, 0.1, 1.0))), "m")
    w, b, y = graph.tensors[1], graph.tensors[2], graph.tensors[graph.output]
    np.testing.assert_allclose(weight_of(graph, graph.ops[0]).quant.scale, (0.01, 0.1, 1.0), rtol=1e-6)
    rq = linear_requant(0.05, w.quant.scale, y.quant.scale[0])
    factor = rq["mult"] * 2.0 ** (rq["shift"] - 31)
    quiet = replace(graph.tensors[1], data=(w.data // 64).astype(np.int8))
    graph = replace(graph, tensors=(graph.tensors[0], quiet, *graph.tensors[2:]))
    for x in random_inputs(graph, 20):
        acc = quiet.data.astype(int) @ (x[0].astype(int) + 3) + b.data
        expected = np.clip(np.floor(acc * factor + 0.5) + y.quant.zero_point, -128, 127)
        got = oracle(write_tflite(graph), [x])[0][0]
        assert np.abs(got - expected).max() <= 1
        assert not (np.abs(got) == 128).all()


def test_fault_a1_scales_along_the_inputs_are_refused() -> None:
    graph = one_linear((0.01, 0.1, 1.0), inputs=3)
    refused(changed(graph, 1, quant=Quant((0.01, 0.1, 1.0), 0, 1)), "quantized along axis 1, it must be axis 0, the output channels")


# ---- A3: the scheme of a model by name --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "x", "w", "name"),
    [
        ("CONV_2D", "uint8", "uint8", "uint8"),
        ("FULLY_CONNECTED", "float32", "int8", r"hybrid \(dynamic range\)"),
        ("FULLY_CONNECTED", "int16", "int8", "int16x8"),
        ("FULLY_CONNECTED", "float32", "float32", "float"),
    ],
)
def test_fault_a3_every_scheme_is_named_and_says_how_to_export_again(code: str, x: str, w: str, name: str) -> None:
    error = refused(one_layer(code, x, w), f"^{name} model .* first seen at op 0 {code}")
    assert "tf.lite.OpsSet.TFLITE_BUILTINS_INT8" in error.hint
    assert ("mcugrad quantize" in error.hint) == (x == "float32")


def test_fault_a3_int8_is_taken() -> None:
    assert import_tflite(one_layer("FULLY_CONNECTED", "int8", "int8"), "m").layers


# ---- A4: biases -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("scale", "given", "off"), [(0.0025, "0.0025", "400 %"), (1e-6, "1e-06", "99.8 %")])
def test_fault_a4_a_bias_scale_that_is_not_the_product_is_refused_with_both_numbers(scale: float, given: str, off: str) -> None:
    n = TinyNet()
    source = n.activation((1, 4, 4, 2))
    graph = n.finish(source, n.conv(source, 1))
    error = refused(changed(graph, 2, quant=Quant((scale,))), "has bias scale")
    assert f"bias scale {given} in channel 0, input scale times weight scale is 0.0005" in error.text and off in error.text


def test_fault_a4_a_bias_at_the_end_of_int32_is_noted() -> None:
    graph = one_linear()
    data = changed(graph, 2, data=np.array([-(2**31), 5, 7], np.int32))
    assert import_tflite(data, "m").notes == ("1 biases are saturated at the end of int32: linear_0",)


# ---- A5: a pruned channel ---------------------------------------------------------------------------------------------


def test_fault_a5_a_channel_with_scale_0_is_kept_as_0_and_gives_zero() -> None:
    m = ModelBuilder()
    x = m.tensor("x", (1, 5, 5, 3), quant=Quant((0.05,), -3))
    w = np.random.default_rng(5).integers(-127, 128, (1, 3, 3, 3), dtype=np.int8)
    y = m.dwconv2d(x, w, (0.02, 0.0, 0.03), np.array([10, 20, 30], np.int32), Quant((0.1,), 11))
    data = m.finish([x], [y])
    graph = import_tflite(data, "m")
    assert weight_of(graph, graph.ops[0]).quant.scale[1] == 0.0
    assert graph.notes == ("1 channels have weight scale 0 (pruned, they stay frozen): dwconv_0",)
    outputs = oracle(write_tflite(graph), random_inputs(graph, 5))
    assert (outputs[..., 1] == 11).all() and (outputs[..., 0] != 11).any()
    assert_same_graph(graph, import_tflite(write_tflite(graph), "again"))


# ---- A7: a multiplier of 1 and more -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("out", "factor"), [(0.1, 2.5), (2**-12, 1024.0)])
def test_fault_a7_an_effective_multiplier_above_1(out: float, factor: float) -> None:
    m = ModelBuilder()
    x = m.tensor("x", (1, 3, 3, 2), quant=Quant((0.5,), 0))
    w = np.array([[[[1, -1]]], [[[0, 1]]]], np.int8)
    y = m.conv2d(x, w, (0.5,), np.array([0, 1], np.int32), Quant((out,), 0))
    data = m.finish([x], [y])
    graph = import_tflite(data, "m")
    rq = conv_requant(0.5, weight_of(graph, graph.ops[0]).quant.scale, graph.tensors[graph.output].quant.scale[0])
    assert rq["mult"][0] * 2.0 ** (rq["shift"][0] - 31) == pytest.approx(factor, rel=1e-6)
    for sample in random_samples(graph, 5):
        np.testing.assert_allclose(oracle_all(write_tflite(graph), [sample], 1)[0][0], evaluate(graph, sample)[0], atol=1)


# ---- A8: functions whose output quantization is fixed -----------------------------------------------------------------


@pytest.mark.parametrize("quant", [Quant((1 / 255,), -128), Quant((1 / 256,), -127)])
@pytest.mark.parametrize("function", ["LOGISTIC", "SOFTMAX"])
def test_fault_a8_logistic_and_softmax_have_one_output_scale(function: str, quant: Quant) -> None:
    n = TinyNet()
    source = n.activation((1, 4))
    y = n.softmax(source) if function == "SOFTMAX" else n.unary(source, Function.LOGISTIC)
    graph = n.finish(source, y)
    import_tflite(write_tflite(graph), "m")
    error = refused(changed(graph, graph.output, quant=quant), f"op 0 {function} has output scale")
    assert (
        f"scale {np.float32(quant.scale[0]):.8g}" in error.text
        and f"{quant.zero_point}, an int8 {function} has exactly 1/256 and -128" in error.text
    )


# ---- A10: a convolution of a grey image written as a depthwise one ----------------------------------------------------


@pytest.mark.parametrize("multiplier", [1, 2, 16])
def test_fault_a10_a_grey_image_through_a_depthwise_layer_with_a_multiplier(multiplier: int) -> None:
    n = TinyNet()
    source = n.activation((1, 28, 28, 1))
    graph = import_tflite(write_tflite(n.finish(source, n.dwconv(source, multiplier))), "m")
    kind = graph.ops[0].kind
    assert isinstance(kind, DwConv2D) and kind.multiplier == multiplier and kind.activation is Activation.RELU
    sample = random_samples(graph, 1)[0]
    assert np.abs(oracle_all(write_tflite(graph), [sample], 1)[0][0] - evaluate(graph, sample)[0]).max() <= 1


# ---- A18, A19: damaged files ------------------------------------------------------------------------------------------

STUB = struct.pack("<I4s", 24, b"TFL3")


@pytest.mark.parametrize(
    "data", [b"", STUB, STUB + bytes(24), bytes(64), struct.pack("<I4s", 0x7FFFFFFF, b"TFL3") + bytes(56)], ids=range(5)
)
def test_fault_a18_a_stub_is_refused_soon_and_in_little_memory(data: bytes) -> None:
    tracemalloc.start()
    start = time.process_time()
    refused(data, "damaged|not a .tflite file")
    assert time.process_time() - start < 1
    assert tracemalloc.get_traced_memory()[1] < 200_000_000
    tracemalloc.stop()


def test_fault_a18_a_file_cut_at_every_byte() -> None:
    data = write_tflite(one_linear())
    for n in range(len(data)):
        refused(data[:n], ".")


def test_fault_a19_every_index_and_size_of_a_good_file_changed() -> None:
    """Buffer, tensor and operator indices, shapes, positions of slices: each word of a file, one at a time. A graph or a ModelError."""
    data = write_tflite(ONE_OP["split, maxpool, concat"]())
    accepted = 0
    for at in range(8, len(data) - 3, 4):
        try:
            import_tflite(data[:at] + struct.pack("<I", 9999) + data[at + 4 :], "m")
            accepted += 1
        except ModelError:
            pass
    assert accepted < len(data) // 8


def test_fault_a19_a_buffer_that_is_not_there_is_named() -> None:
    data = bytearray(write_tflite(one_linear()))
    t = tflite.Model.GetRootAs(bytes(data)).Subgraphs(0).Tensors(1)
    struct.pack_into("<I", data, t._tab.Pos + t._tab.Offset(8), 9999)
    refused(bytes(data), r"tensor 1 \(w1\) names buffer 9999")


# ---- A22: variables and custom operators ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("builtin", "text"),
    [("CUSTOM", r"op 0 is the custom operator \(no name\)"), ("VAR_HANDLE", "op 0 VAR_HANDLE works on a resource variable")],
)
def test_fault_a22_what_only_a_training_graph_has_is_named(builtin: str, text: str) -> None:
    m = ModelBuilder()
    x = m.tensor("x", (1, 4), quant=Quant((0.5,)))
    y = m.tensor("y", (1, 4), quant=Quant((0.5,)))
    m.op(getattr(BUILTIN, builtin), [x], [y])
    data = m.finish([x], [y])
    error = refused(data, rf"{text}.* \(it writes tensor 1 \(y\)\)")
    assert "export the inference signature only" in error.hint


# ---- A24: what is int8 and what is not --------------------------------------------------------------------------------


def test_fault_a24_the_share_of_int8_and_the_types_of_the_border() -> None:
    graph = every_op()
    assert int8_share(graph) == 1
    assert (graph.tensors[graph.input].dtype, input_of(graph).dtype) == (np.float32, np.int8)
    assert (graph.tensors[graph.output].dtype, output_of(graph).dtype) == (np.float32, np.int8)
    hybrid = read_model(shared("models/mlperf_tiny/kws_ref_model_float32.tflite"), allow_float=True)
    assert int8_share(hybrid) == 0


# ---- bias scales that name another axis -------------------------------------------------------------------------------


def test_person_detect_is_read_as_the_runtime_reads_it() -> None:
    """Fourteen bias tensors carry quantized_dimension 3; the repaired twin has 0 and the runtime gives the same answers to both."""
    odd, repaired = (read_model(shared(f"models/tflm/{name}.tflite")) for name in ("person_detect", "person_detect_qdimfix"))
    assert_same_graph(odd, repaired)
    inputs = random_inputs(odd, 2)
    original = shared("models/tflm/person_detect.tflite").read_bytes()
    np.testing.assert_array_equal(oracle(write_tflite(odd), inputs), oracle(original, inputs))
