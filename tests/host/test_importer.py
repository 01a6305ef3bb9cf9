"""What the importer makes of good files, and what it says of files that are whole but not meant for mcugrad."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tflite

from helpers.tiny_graphs import TinyNet, every_op, one_linear, small_net
from mcugrad.errors import ModelError
from mcugrad.exporter import tflite as exporter
from mcugrad.exporter import write_tflite
from mcugrad.graph import DwConv2D, Function, Graph, Quant, Tensor, Unary
from mcugrad.importer import import_tflite, read_model

TYPE_SLOT, BUFFER_SLOT = 6, 8


def patched_type(data: bytes, tensor: int, code: int) -> bytes:
    """The file with another type for one tensor."""
    t = tflite.Model.GetRootAs(data).Subgraphs(0).Tensors(tensor)
    out = bytearray(data)
    out[t._tab.Pos + t._tab.Offset(TYPE_SLOT)] = code
    return bytes(out)


def patched_buffer(data: bytes, tensor: int, buffer: int) -> bytes:
    t = tflite.Model.GetRootAs(data).Subgraphs(0).Tensors(tensor)
    out = bytearray(data)
    struct.pack_into("<I", out, t._tab.Pos + t._tab.Offset(BUFFER_SLOT), buffer)
    return bytes(out)


def patched_operator(data: bytes, index: int, builtin: int) -> bytes:
    """The file with another builtin for one operator code."""
    code = tflite.Model.GetRootAs(data).OperatorCodes(index)
    out = bytearray(data)
    out[code._tab.Pos + code._tab.Offset(4)] = min(builtin, 127)
    struct.pack_into("<i", out, code._tab.Pos + code._tab.Offset(10), builtin)
    return bytes(out)


def with_tensor(graph: Graph, index: int, **changes) -> Graph:
    tensors = list(graph.tensors)
    tensors[index] = replace(tensors[index], **changes)
    return replace(graph, tensors=tuple(tensors))


def refused(graph: Graph | bytes, match: str) -> ModelError:
    data = graph if isinstance(graph, bytes) else write_tflite(graph)
    with pytest.raises(ModelError, match=match) as caught:
        import_tflite(data, "m")
    assert caught.value.exit_code == 3
    assert caught.value.hint
    return caught.value


def index_of(graph: Graph, layer: str, slot: int) -> int:
    return next(op for op in graph.ops if op.name == layer).inputs[slot]


# ---- good files -----------------------------------------------------------------------------------------------------


def test_the_graph_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "net.tflite"
    data = write_tflite(every_op(), path)
    graph = read_model(path)
    assert graph.name == "net"
    assert graph.model_hash == zlib.crc32(data)
    assert [op.name for op in graph.layers] == ["conv_0", "dwconv_0", "conv_1", "dwconv_1", "linear_0"]
    assert graph.tensors[graph.input].dtype == np.float32
    assert graph.notes == ()


def test_same_padding_becomes_explicit() -> None:
    """9x7 at stride 2 with a 3x3 kernel: one row above, one below; 6 columns would need one on the right only."""
    n = TinyNet()
    source = n.activation((1, 9, 6, 2))
    graph = import_tflite(write_tflite(n.finish(source, n.conv(source, 3, stride=(2, 2)))), "m")
    assert graph.ops[0].kind.pad == (1, 0, 1, 1)


@pytest.mark.parametrize("multiplier", [1, 2, 16])
def test_depthwise_on_one_channel(multiplier: int) -> None:
    n = TinyNet()
    source = n.activation((1, 8, 8, 1))
    graph = import_tflite(write_tflite(n.finish(source, n.dwconv(source, multiplier))), "m")
    kind = graph.ops[0].kind
    assert isinstance(kind, DwConv2D)
    assert kind.multiplier == multiplier
    assert graph.tensors[graph.output].shape == (1, 8, 8, multiplier)


def test_a_linear_layer_with_one_scale_per_row_keeps_them() -> None:
    graph = import_tflite(write_tflite(one_linear((0.01, 0.1, 1.0))), "m")
    quant = graph.tensors[index_of(graph, "linear_0", 1)].quant
    np.testing.assert_allclose(quant.scale, (0.01, 0.1, 1.0), rtol=1e-6)
    assert quant.axis == 0


def test_a_pruned_channel_is_noted() -> None:
    graph = import_tflite(write_tflite(one_linear((0.02, 0.0, 0.03))), "m")
    assert graph.notes == ("1 channels have weight scale 0 (pruned, they stay frozen): linear_0",)


def test_a_saturated_bias_is_noted() -> None:
    graph = one_linear()
    bias = np.array([-(2**31), 5, 2**31 - 1], np.int32)
    graph = import_tflite(write_tflite(with_tensor(graph, index_of(graph, "linear_0", 2), data=bias)), "m")
    assert graph.notes == ("2 biases are saturated at the end of int32: linear_0",)


@pytest.mark.parametrize(("scale", "noted"), [(0.05, False), (0.03, True)])
def test_a_relu6_that_rescales_is_noted(scale: float, noted: bool) -> None:
    n = TinyNet()
    source = n.activation((1, 4))
    graph = import_tflite(write_tflite(n.finish(source, n.unary(source, Function.RELU6, scale=scale, zero_point=-3))), "m")
    text = "1 RELU6 change the quantization: rescaled as in TensorFlow Lite, TensorFlow Lite Micro only clamps there: relu6_0"
    assert graph.notes == ((text,) if noted else ())


def test_a_bias_whose_scales_name_another_axis_is_read_anyway() -> None:
    graph = one_linear((0.01, 0.1, 1.0))
    index = index_of(graph, "linear_0", 2)
    graph = import_tflite(write_tflite(with_tensor(graph, index, quant=replace(graph.tensors[index].quant, axis=3))), "m")
    assert graph.notes == ("3 bias scales name an axis that a bias does not have, read along its only axis: linear_0",)


# ---- other schemes --------------------------------------------------------------------------------------------------

INT8, INT16, UINT8, FLOAT = 9, 7, 3, 0


@pytest.mark.parametrize(
    ("scheme", "x", "w"),
    [("uint8", UINT8, UINT8), ("hybrid", FLOAT, INT8), ("int16x8", INT16, INT8), ("float", FLOAT, FLOAT), ("int4", INT8, 17)],
)
def test_every_other_scheme_is_told_by_name(scheme: str, x: int, w: int) -> None:
    graph = one_linear()
    data = patched_type(patched_type(write_tflite(graph), graph.input, x), index_of(graph, "linear_0", 1), w)
    error = refused(data, f"^{scheme}.* model .*op 0 FULLY_CONNECTED")
    assert "representative_dataset" in error.hint


def test_an_int16_border_is_refused() -> None:
    graph = _requantized()
    refused(patched_type(write_tflite(graph), graph.input, INT16), r"input.*is int16")


def test_a_uint8_input_that_no_quantize_reads_is_refused() -> None:
    n = TinyNet()
    source, other = n.activation((1, 4), zero_point=3), n.activation((1, 4))
    data = write_tflite(n.finish_all((source, other), (n.add(other, source),)))
    refused(patched_type(data, source, UINT8), "reads t0, which is uint8: only QUANTIZE may read a uint8 input")


def test_quantize_inside_an_int8_model_is_a_function() -> None:
    graph = import_tflite(write_tflite(_requantized()), "m")
    assert [op.name for op in graph.ops] == ["requantize_0", "linear_0"]
    assert graph.ops[0].kind == Unary(Function.REQUANTIZE)


def _requantized() -> Graph:
    n = TinyNet()
    source = n.activation((1, 4))
    return n.finish(source, n.linear(n.unary(source, Function.REQUANTIZE), 3))


# ---- operators ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("builtin", "text"),
    [(67, r"op 2 TRANSPOSE_CONV is not supported \(it writes tensor 7 \(t7\)\)"), (142, "op 2 VAR_HANDLE works on a resource")],
)
def test_an_unknown_operator_is_named(builtin: int, text: str) -> None:
    data = write_tflite(small_net())
    codes = [tflite.Model.GetRootAs(data).OperatorCodes(i).BuiltinCode() for i in range(4)]
    linear = tflite.BuiltinOperator.FULLY_CONNECTED
    error = refused(patched_operator(data, codes.index(linear), builtin), text)
    assert error.hint.startswith("cut the model: the graph up to tensor 't4' (op 1) is supported")
    assert "CONV_2D" in error.hint or "signature" in error.hint


def test_the_cut_is_behind_an_operator_that_comes_first() -> None:
    n = TinyNet()
    source = n.activation((1, 4, 4, 2))
    x = n.transpose(source, (0, 2, 1, 3))
    data = write_tflite(n.finish(source, n.conv(x, 3)))
    codes = [tflite.Model.GetRootAs(data).OperatorCodes(i).BuiltinCode() for i in range(2)]
    error = refused(patched_operator(data, codes.index(tflite.BuiltinOperator.TRANSPOSE), 67), "op 0 TRANSPOSE_CONV")
    assert error.hint.startswith("cut the model: the graph from tensor 't1' (op 0) on is supported")


def test_no_cut_is_promised_that_would_not_work() -> None:
    """Before the unsupported operator stands one that is refused for another reason."""
    n = TinyNet()
    source = n.activation((1, 4, 4, 2))
    x = n.conv(source, 3)
    graph = n.finish(source, n.transpose(x, (0, 2, 1, 3)))
    data = write_tflite(with_tensor(graph, index_of(graph, "conv_0", 2), quant=Quant((5.0,))))
    codes = [tflite.Model.GetRootAs(data).OperatorCodes(i).BuiltinCode() for i in range(2)]
    error = refused(patched_operator(data, codes.index(tflite.BuiltinOperator.TRANSPOSE), 67), "op 1 TRANSPOSE_CONV")
    assert "cut" not in error.hint


def test_a_custom_operator_is_named() -> None:
    data = write_tflite(one_linear())
    refused(patched_operator(data, 0, tflite.BuiltinOperator.CUSTOM), r"op 0 is the custom operator \(no name\)")


# ---- contradictions -------------------------------------------------------------------------------------------------


def _change(layer: str, slot: int, **changes) -> Callable[[Graph], Graph]:
    return lambda g: with_tensor(g, index_of(g, layer, slot), **changes)


def _output(**changes) -> Callable[[Graph], Graph]:
    return lambda g: with_tensor(g, g.output, **changes)


def _ops(change: Callable[[tuple], tuple]) -> Callable[[Graph], Graph]:
    return lambda g: replace(g, ops=change(g.ops))


NAN = float("nan")

CONTRADICTIONS = {
    "bias scale 5 times too large": (
        _change("linear_0", 2, quant=Quant((0.0015,))),
        r"bias scale 0.0015 in channel 0, .* is 0.0003 \(400 %",
    ),
    "bias scale clamped": (_change("linear_0", 2, quant=Quant((1e-6,))), r"bias scale 1e-06 in channel 0"),
    "bias scale NaN": (_change("linear_0", 2, quant=Quant((NAN,))), "bias scale that is negative, infinite or NaN"),
    "bias scales of wrong count": (_change("linear_0", 2, quant=Quant((0.1, 0.1))), "2 bias scales for 4"),
    "bias without scale": (_change("linear_0", 2, quant=None), "0 bias scales for 4"),
    "bias zero point": (_change("linear_0", 2, quant=Quant((0.0003,), 1)), "bias with zero point 1"),
    "bias too long": (
        _change("linear_0", 2, shape=(5,), data=np.zeros(5, np.int32)),
        r"bias of shape \(5,\), \(4,\) is expected",
    ),
    "weight zero point": (_change("conv_0", 1, quant=Quant((0.01,), 3)), "weights with zero point 3"),
    "weight scale NaN": (_change("linear_0", 1, quant=Quant((NAN,))), "weight scale nan in channel 0"),
    "weight scale negative": (_change("linear_0", 1, quant=Quant((-0.01,))), "weight scale -0.01"),
    "weight scales along the inputs": (_change("linear_0", 1, quant=Quant((0.1,) * 4, 0, 1)), "quantized along axis 1, it must be axis 0"),
    "weight scales of wrong count": (_change("conv_0", 1, quant=Quant((0.1,) * 2)), "2 weight scales for 3"),
    "weights shorter than their shape": (_change("conv_0", 1, data=np.zeros(53, np.int8)), "needs 54 bytes, its buffer has 53"),
    "weights that are no constant": (_change("linear_0", 1, data=None), "is not a constant"),
    "weights for other channels": (
        _change("conv_0", 1, shape=(3, 3, 3, 1), data=np.zeros((3, 3, 3, 1), np.int8)),
        r"weights of shape \(3, 3, 3, 1\) for an input of 2 channels: .* number of groups",
    ),
    "activation scale zero": (_change("linear_0", 0, quant=Quant((0.0,))), "has scale 0,"),
    "activation scale infinite": (_change("linear_0", 0, quant=Quant((float("inf"),))), "has scale inf"),
    "activation with two scales": (_change("linear_0", 0, quant=Quant((0.1, 0.2))), "has 2 scales"),
    "activation without scale": (_change("linear_0", 0, quant=None), "has 0 scales"),
    "activation zero point": (_change("linear_0", 0, quant=Quant((0.1,), 200)), "zero point 200, the range of int8"),
    "batch of two": (_change("conv_0", 0, shape=(2, 6, 5, 2)), "the batch must be 1"),
    "a size of zero": (_change("conv_0", 0, shape=(1, 0, 5, 2)), "every size must be 1 or more"),
    "a size beyond all memory": (_change("conv_0", 0, shape=(1, 2**20, 2**20, 2)), "the limit is 67,108,864"),
    "an input that is a constant": (_change("conv_0", 0, data=np.zeros((1, 6, 5, 2), np.int8)), "is a constant"),
    "an output of another shape": (_change("linear_0", 0, shape=(1, 4)), r"gives shape \(1, 3\), but the file says \(1, 4\)"),
    "softmax scale 1/255": (_output(quant=Quant((1 / 255,), -128)), "exactly 1/256 and -128"),
    "softmax zero point": (_output(quant=Quant((1 / 256,), -127)), "exactly 1/256 and -128"),
    "ops out of order": (_ops(lambda ops: ops[::-1]), "before any operator has written it"),
    "an output that nothing computes": (_ops(lambda ops: ops[:-1]), "is computed by no operator"),
    "an output written twice": (_ops(lambda ops: (*ops, replace(ops[-1], name="again"))), "which has a value already"),
    "no operators": (_ops(lambda ops: ()), "no operators"),
}


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_a_file_that_contradicts_itself(case: str) -> None:
    change, text = CONTRADICTIONS[case]
    refused(change(small_net()), text)


def test_a_bias_scale_within_one_percent_is_accepted() -> None:
    import_tflite(write_tflite(_change("linear_0", 2, quant=Quant((0.0003 * 1.009,)))(small_net())), "m")


def test_a_requantized_pad_is_refused() -> None:
    n = TinyNet()
    source = n.activation((1, 4, 4, 1))
    graph = n.finish(source, n.pad(source, (1, 1, 1, 1)))
    refused(
        with_tensor(graph, graph.output, quant=Quant((0.07,), -3)),
        r"PAD reads t0 with quantization \(0.05, -3\) and writes t1 with \(0.07, -3\)",
    )


def test_a_reshape_that_loses_elements_is_refused() -> None:
    n = TinyNet()
    source = n.activation((1, 4))
    refused(n.finish(source, n.reshape(source, (1, 3))), "the number of elements must stay the same")


def test_a_buffer_that_is_not_there() -> None:
    refused(patched_buffer(write_tflite(small_net()), 1, 9999), "names buffer 9999")


# ---- what no graph can say, only a file ------------------------------------------------------------------------------


def edited(graph: Graph, code: str, inputs: tuple[int, ...] | None = None, builtin: str | None = None, **fields: float) -> bytes:
    """The graph's file with one operator changed: its inputs, its builtin, its option fields."""
    file = exporter.to_file(graph)
    at = next(i for i, op in enumerate(file.ops) if op.code == getattr(tflite.BuiltinOperator, code))
    op = file.ops[at]
    number = op.code if builtin is None else getattr(tflite.BuiltinOperator, builtin)
    file.ops[at] = replace(op, code=number, inputs=op.inputs if inputs is None else inputs, fields={**op.fields, **fields})
    return exporter.serialize(file, graph)


@pytest.mark.parametrize(
    ("code", "fields", "text"),
    [
        ("FULLY_CONNECTED", {"WeightsFormat": 1}, "shuffled weights"),
        ("FULLY_CONNECTED", {"FusedActivationFunction": 4}, "fused activation TANH"),
        ("FULLY_CONNECTED", {"FusedActivationFunction": 99}, "fused activation 99"),
        ("CONV_2D", {"StrideH": 0}, r"stride \(0, 2\)"),
        ("CONV_2D", {"DilationWFactor": -1}, r"dilation \(1, -1\)"),
        ("CONV_2D", {"Padding": 2}, "padding 2 is neither SAME nor VALID"),
        ("DEPTHWISE_CONV_2D", {"DepthMultiplier": 3}, "depth_multiplier 3, the shape of the weights says 1"),
        ("AVERAGE_POOL_2D", {"FilterHeight": 0}, r"kernel \(0, 2\)"),
        ("AVERAGE_POOL_2D", {"FilterHeight": 99}, "where it does not fit"),
        ("SOFTMAX", {"Beta": float("inf")}, "beta inf"),
        ("SOFTMAX", {"Beta": 0.0}, "beta 0"),
    ],
)
def test_options_that_cannot_be_meant(code: str, fields: dict[str, float], text: str) -> None:
    refused(edited(every_op(), code, **fields), text)


@pytest.mark.parametrize("code", ["CONV_2D", "FULLY_CONNECTED", "ADD", "PAD", "MEAN", "SOFTMAX", "DEQUANTIZE", "QUANTIZE"])
def test_operators_without_their_inputs(code: str) -> None:
    refused(edited(every_op(), code, inputs=()), "has no input 0")


def test_a_model_of_one_layer_without_weights() -> None:
    """Found by fuzzing: the scheme was read from the second input, which was not there."""
    refused(edited(one_linear(), "FULLY_CONNECTED", inputs=(0,)), "has no input 1")


def test_a_layer_with_too_many_inputs() -> None:
    refused(edited(one_linear(), "FULLY_CONNECTED", inputs=(0, 1, 2, 2)), "has 4 inputs, at most 3")


def _with_constant(graph: Graph, value: list[int], dtype: type[np.generic]) -> tuple[Graph, int]:
    data = np.array(value, dtype)
    return replace(graph, tensors=(*graph.tensors, Tensor("c", data.shape, data.dtype, Quant((0.1,)), data))), len(graph.tensors)


@pytest.mark.parametrize("shape", [[1, 2, 2], [4, 1], [-1, 2, 3]])
def test_a_reshape_that_asks_for_another_shape(shape: list[int]) -> None:
    n = TinyNet()
    source = n.activation((1, 4))
    graph, constant = _with_constant(n.finish(source, n.reshape(source, (1, 4))), shape, np.int32)
    refused(edited(graph, "RESHAPE", inputs=(source, constant)), "asks for shape")


@pytest.mark.parametrize("builtin", ["SQUEEZE", "EXPAND_DIMS"])
def test_squeeze_and_expand_dims_are_reshapes(builtin: str) -> None:
    n = TinyNet()
    source = n.activation((1, 4))
    data = edited(n.finish(source, n.reshape(source, (1, 1, 4))), "RESHAPE", builtin=builtin)
    with pytest.raises(ModelError, match="has options of kind"):
        import_tflite(edited(n.finish(source, n.linear(source, 3)), "FULLY_CONNECTED", builtin="CONV_2D"), "m")
    assert import_tflite(data, "m").ops[0].name == "reshape_0"


def test_a_scalar_activation_is_refused() -> None:
    n = TinyNet()
    source = n.activation((1, 1))
    refused(edited(n.finish(source, n.reshape(source, ())), "RESHAPE", inputs=(source,), builtin="SQUEEZE"), "is a scalar")


def test_zero_points_that_differ_by_channel_are_refused() -> None:
    data = bytearray(write_tflite(one_linear((0.1, 0.2, 0.3))))
    q = tflite.Model.GetRootAs(bytes(data)).Subgraphs(0).Tensors(1).Quantization()
    data[q._tab.Vector(q._tab.Offset(10)) + 8] = 1
    refused(bytes(data), "zero points that differ by channel")


@pytest.mark.parametrize("allow_float", [False, True])
def test_a_zero_point_past_32_bits_is_refused(allow_float: bool) -> None:
    """A hybrid layer's weights are expanded in 32 bits: 2^60 was an OverflowError."""
    data = bytearray(write_tflite(one_linear((0.1,))))
    q = tflite.Model.GetRootAs(bytes(data)).Subgraphs(0).Tensors(1).Quantization()
    at = q._tab.Vector(q._tab.Offset(10))
    data[at : at + 8] = (1 << 60).to_bytes(8, "little")
    with pytest.raises(ModelError, match="zero point 1152921504606846976, it does not fit 32 bits"):
        import_tflite(bytes(data), "m", allow_float=allow_float)


def test_a_float_tensor_inside_is_refused() -> None:
    n = TinyNet()
    source = n.activation((1, 4))
    x = n.linear(source, 3)
    n.dequantize(x)
    refused(n.finish(source, x), "turns an inner tensor into float")


def test_an_input_quantized_twice_is_refused() -> None:
    n = TinyNet()
    source = n.float_tensor((1, 4))
    refused(n.finish(source, n.add(n.quantize(source), n.quantize(source))), "a second time")


def test_two_inputs_are_quantized_each() -> None:
    n = TinyNet()
    a, b = n.float_tensor((1, 4)), n.float_tensor((1, 4))
    graph = n.finish_all((a, b), (n.dequantize(n.add(n.quantize(a), n.quantize(b))),))
    assert [op.name for op in import_tflite(write_tflite(graph), "m").ops] == ["quantize_0", "quantize_1", "add_0", "dequantize_0"]


@pytest.mark.parametrize(
    ("inputs", "outputs", "text"), [((0, 0), (3,), "inputs are"), ((0,), (3, 3), "outputs are"), ((0,), (), "outputs are")]
)
def test_inputs_and_outputs_that_cannot_be_meant(inputs: tuple[int, ...], outputs: tuple[int, ...], text: str) -> None:
    refused(replace(one_linear(), inputs=inputs, outputs=outputs), text)


# ---- files that are no models ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"\x08\x07\x12\x07pytorch" + bytes(30), "ONNX"),
        (b"PK\x03\x04" + bytes(30), "zip archive"),
        (b"\x89HDF\r\n\x1a\n" + bytes(30), "Keras .h5"),
        (b"hello, this is a text", "not a .tflite file"),
        (b"", "0 bytes"),
    ],
)
def test_another_kind_of_file(content: bytes, text: str, tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=f"model.bin: .*{text}"):
        read_model(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"cannot read the model .*No such file"):
        read_model(tmp_path / "none.tflite")
    with pytest.raises(ModelError, match="cannot read the model"):
        read_model(tmp_path)


def test_another_schema_version() -> None:
    data = bytearray(write_tflite(small_net()))
    model = tflite.Model.GetRootAs(bytes(data))
    struct.pack_into("<I", data, model._tab.Pos + model._tab.Offset(4), 2)
    refused(bytes(data), "schema version 2, mcugrad reads version 3")
