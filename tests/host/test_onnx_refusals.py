"""What an ONNX file may hold that mcugrad does not read: one error each, which names the node, the value and the way out."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.onnx_builder import OnnxBuilder
from mcugrad.errors import ModelError, UnavailableError
from mcugrad.importer import read_model
from mcugrad.importer.onnx import import_onnx, is_onnx

onnx = pytest.importorskip("onnx")

Change = Callable[[Any], None]


def small() -> bytes:
    """conv, relu, gemm: QDQ."""
    b = OnnxBuilder()
    x = b.qdq(b.input("x", (1, 2, 5, 5)), 0.05, 3)
    w = b.weights((3, 2, 3, 3))
    y = b.qdq(b.node("Relu", b.node("Conv", x, w, b.bias(w, 0.05))), 0.1, -128)
    w = b.weights((4, 27))
    return b.finish(b.qdq(b.node("Gemm", b.node("Flatten", y), w, b.bias(w, 0.1), transB=1), 0.2, 0))


def changed(change: Change, data: bytes | None = None) -> bytes:
    model = onnx.load_from_string(data or small())
    change(model)
    return bytes(model.SerializeToString())


def refusal(data: bytes, **options: Any) -> ModelError:
    with pytest.raises(ModelError) as caught:
        import_onnx(data, "g", **options)
    assert caught.value.hint
    return caught.value


def node_of(model: Any, op: str, k: int = 0) -> Any:
    return [n for n in model.graph.node if n.op_type == op][k]


def constant_of(model: Any, name: str) -> Any:
    return next(c for c in model.graph.initializer if c.name == name)


def set_constant(op: str, k: int, value: Any) -> Change:
    def change(model: Any) -> None:
        t = constant_of(model, node_of(model, op).input[k])
        t.CopyFrom(onnx.numpy_helper.from_array(np.array(value), t.name))

    return change


def set_attribute(op: str, name: str, value: Any) -> Change:
    def change(model: Any) -> None:
        node = node_of(model, op)
        kept = [a for a in node.attribute if a.name != name]
        del node.attribute[:]
        node.attribute.extend([*kept, onnx.helper.make_attribute(name, value)])

    return change


def set_op(op: str, other: str, domain: str = "") -> Change:
    def change(model: Any) -> None:
        node = node_of(model, op)
        node.op_type, node.domain = other, domain

    return change


def set_input(op: str, k: int, name: str) -> Change:
    def change(model: Any) -> None:
        node_of(model, op).input[k] = name

    return change


def set_dim(axis: int, name: str) -> Change:
    def change(model: Any) -> None:
        model.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = name

    return change


def set_opset(version: int) -> Change:
    def change(model: Any) -> None:
        model.opset_import[0].version = version

    return change


def cycle(model: Any) -> None:
    gemm, flatten = node_of(model, "Gemm"), node_of(model, "Flatten")
    flatten.input[0] = gemm.output[0]


def twice(model: Any) -> None:
    node_of(model, "Relu").output[0] = node_of(model, "Conv").output[0]


def int16(model: Any) -> None:
    set_constant("QuantizeLinear", 2, np.int16(0))(model)


def batch(model: Any) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 8


def huge_input(model: Any) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_value = 2**31


def short_raw(model: Any) -> None:
    constant_of(model, node_of(model, "DequantizeLinear", 1).input[0]).raw_data = b"\0" * 7


def huge_constant(model: Any) -> None:
    constant_of(model, node_of(model, "DequantizeLinear", 1).input[0]).dims[:] = [2**40, 2**40]


def bfloat(model: Any) -> None:
    constant_of(model, node_of(model, "DequantizeLinear", 1).input[0]).data_type = 16


REFUSED: dict[str, tuple[Change, str]] = {
    "unknown op": (set_op("Relu", "Erf"), "node 5 Erf 'Relu_5' is not supported: the nearest cut before it is tensor 'dequantizelinear6'"),
    "custom op": (set_op("Relu", "Magic", "my.domain"), "Magic 'Relu_5' of domain my.domain is not supported"),
    "dynamic quantization": (set_op("Conv", "ConvInteger"), "ConvInteger 'Conv_4' belongs to a dynamically quantized model"),
    "matmul integer": (set_op("Gemm", "MatMulInteger"), "MatMulInteger 'Gemm_11' belongs to a dynamically quantized model"),
    "dynamic height": (set_dim(2, "height"), "input 'x' has the dynamic size 'height' on axis 2"),
    "batch": (batch, "has shape (8, 2, 5, 5): the batch must be 1"),
    "huge input": (huge_input, "with at most 4,194,304 elements are expected"),
    "old opset": (set_opset(10), "opset 10, mcugrad reads 11 to 21"),
    "new opset": (set_opset(40), "opset 40, mcugrad reads 11 to 21"),
    "cycle": (cycle, "is part of a cycle"),
    "written twice": (twice, "which has a value already"),
    "nobody writes": (set_input("Relu", 0, "ghost"), "reads 'ghost', which no node writes"),
    "int16": (int16, "quantizes to int16, int8 or uint8 is expected"),
    "scale 0": (set_constant("QuantizeLinear", 1, np.float32(0)), "has scale 0, it must be finite and above 0"),
    "scale NaN": (set_constant("QuantizeLinear", 1, np.float32("nan")), "has scale nan"),
    "two scales": (set_constant("QuantizeLinear", 1, np.float32([1, 2])), "has 2 scales of type float32 for an activation"),
    "q and dq differ": (
        set_constant("DequantizeLinear", 1, np.float32(0.07)),
        "with scale 0.07 and zero point 3, it was written with 0.05 and 3",
    ),
    "strides": (set_attribute("Conv", "strides", [0, 1]), "stride (0, 1)"),
    "one stride": (set_attribute("Conv", "strides", [1]), "has strides (1,), 2 numbers are expected"),
    "kernel shape": (set_attribute("Conv", "kernel_shape", [2, 3]), "has kernel_shape (2, 3), the weights say (3, 3)"),
    "negative pads": (set_attribute("Conv", "pads", [0, -1, 0, 0]), "has pads (0, -1, 0, 0)"),
    "groups": (set_attribute("Conv", "group", 2), "in 2 groups for 2 input channels"),
    "does not fit": (set_attribute("Conv", "dilations", [9, 9]), "where it does not fit"),
    "auto pad": (set_attribute("Conv", "auto_pad", "SOME"), "has auto_pad SOME"),
    "attribute type": (set_attribute("Conv", "group", "one"), "has an attribute group that is no integer"),
    "transposed input": (set_attribute("Gemm", "transA", 1), "transposes its input"),
    "axis of weights": (set_attribute("Gemm", "transB", 0), "quantized along axis 0, it must be axis 1"),
    "raw data": (short_raw, "has 7 bytes for shape (3, 2, 3, 3) of int8"),
    "huge constant": (huge_constant, "the limit is 67,108,864 elements"),
    "bfloat16": (bfloat, "is of type bfloat16"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_named(name: str) -> None:
    change, text = REFUSED[name]
    assert text in str(refusal(changed(change)))


def test_the_file_that_all_of_these_are_made_from_is_read() -> None:
    assert len(import_onnx(small(), "g").ops) == 5


def test_two_activations_cannot_be_multiplied_as_matrices() -> None:
    b = OnnxBuilder()
    x = b.qdq(b.input("x", (1, 4, 4)), 0.1)
    assert "multiplies two activations" in refusal(b.finish(b.qdq(b.node("MatMul", x, x), 0.1))).text


def test_a_result_that_is_used_before_it_is_quantized_names_both_nodes() -> None:
    b = OnnxBuilder()
    y = b.node("Conv", b.qdq(b.input("x", (1, 2, 5, 5)), 0.1), b.weights((2, 2, 1, 1)))
    error = refusal(b.finish(b.qdq(b.node("Sigmoid", y), 0.1)))
    assert "Conv" in error.text and "Sigmoid" in error.text and "before any QuantizeLinear" in error.text


def test_a_hard_sigmoid_alone_is_refused() -> None:
    b = OnnxBuilder()
    gate = b.qdq(b.node("HardSigmoid", b.qdq(b.input("x", (1, 4)), 0.1), alpha=1 / 6), 1 / 256, -128)
    assert "only times its own input, as hard swish" in refusal(b.finish(gate)).text
    assert "as hard swish" in refusal(b.finish(b.qdq(b.node("Relu", gate), 0.1))).text


def test_a_last_result_without_a_scale_is_named() -> None:
    b = OnnxBuilder()
    x = b.qdq(b.input("x", (1, 4)), 0.1)
    assert "Sub_2' has a result that is the model's output before any QuantizeLinear" in refusal(b.finish(b.node("Sub", x, x))).text


def test_a_float_model_is_refused_by_name_unless_it_is_asked_for() -> None:
    b = OnnxBuilder()
    data = b.finish(b.node("Conv", b.input("x", (1, 2, 5, 5)), b.const(np.ones((2, 2, 1, 1)), np.float32)))
    error = refusal(data)
    assert "float model (float32 activations, first seen at node 0 Conv 'Conv_0')" in error.text and "mcugrad quantize" in error.hint
    assert import_onnx(data, "g", allow_float=True).ops


def test_float_weights_in_a_quantized_model_are_refused() -> None:
    b = OnnxBuilder()
    y = b.node("Conv", b.qdq(b.input("x", (1, 2, 5, 5)), 0.1), b.const(np.ones((2, 2, 1, 1)), np.float32))
    assert "has float32 weights without a scale" in refusal(b.finish(b.qdq(y, 0.1))).text


def test_an_int8_input_without_a_scale_is_refused() -> None:
    b = OnnxBuilder()
    data = b.finish(b.node("Reshape", b.qdq(b.dq(b.input("a", (1, 4), np.int8), 0.1), 0.2), b.const(np.array([1, 2, 2]), np.int64)))
    assert import_onnx(data, "g").ops
    b = OnnxBuilder()
    b.input("b", (1, 4), np.int8)
    other = b.qdq(b.input("x", (1, 4)), 0.1)
    assert "nothing says its scale" in refusal(b.finish(b.qdq(b.node("Relu", other), 0.1))).text


# ---- damage --------------------------------------------------------------------------------------------------------------


def test_damaged_bytes_are_refused_at_every_length() -> None:
    data = small()
    for n in [*range(64), *range(64, len(data), 37)]:
        with pytest.raises(ModelError):
            import_onnx(data[:n], "g")


def test_flipped_bytes_give_a_graph_or_a_model_error() -> None:
    data = bytearray(small())
    rng = np.random.default_rng(0)
    for _ in range(400):
        mutant = bytearray(data)
        for at in rng.integers(0, len(data), rng.integers(1, 4)):
            mutant[at] = int(rng.integers(0, 256))
        try:
            import_onnx(bytes(mutant), "g")
        except ModelError as error:
            assert error.hint


def test_what_looks_like_onnx() -> None:
    assert is_onnx(small())
    for other in (b"", bytes(64), b"\x08\x08", b"\x18\0\0\0TFL3" + bytes(60), b"PK\x03\x04" + bytes(60)):
        assert not is_onnx(other)


# ---- external data -------------------------------------------------------------------------------------------------------


def external(folder: Path, **entries: str) -> Path:
    """The small model with the weights of its convolution in weights.bin."""

    def change(model: Any) -> None:
        t = constant_of(model, node_of(model, "DequantizeLinear", 1).input[0])
        (folder / "weights.bin").write_bytes(t.raw_data)
        t.ClearField("raw_data")
        t.data_location = 1
        for key, value in {"location": "weights.bin", **entries}.items():
            t.external_data.add(key=key, value=value)

    path = folder / "model.onnx"
    path.write_bytes(changed(change))
    return path


def test_external_data_beside_the_model_is_read(tmp_path: Path) -> None:
    graph, same = read_model(external(tmp_path, offset="0", length="54")), import_onnx(small(), "g")
    assert all(np.array_equal(a.data, b.data) for a, b in zip(graph.tensors, same.tensors, strict=True) if b.data is not None)
    assert graph.model_hash != same.model_hash


@pytest.mark.parametrize("location", ["../secret", "../../x", "/etc/passwd", "sub/../../secret", "a\\b", ".", "", "link"])
def test_external_data_never_leaves_the_folder_of_the_model(tmp_path: Path, location: str) -> None:
    """onnxruntime#18874: data outside the 2 GB protobuf, and what a path may name."""
    folder = tmp_path / "inner"
    folder.mkdir()
    (tmp_path / "secret").write_bytes(bytes(54))
    (folder / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(ModelError, match="is not inside the model's folder") as caught:
        read_model(external(folder, location=location))
    assert f"'{location}'" in caught.value.text


@pytest.mark.parametrize(
    ("entries", "text"),
    [
        ({"location": "absent.bin"}, "'absent.bin', which cannot be read"),
        ({"length": "53"}, "with length 53, 54 bytes are expected"),
        ({"length": "-1"}, "with length -1, 54 bytes are expected"),
        ({"offset": "10"}, "'weights.bin', which ends 10 bytes too early"),
        ({"offset": "9" * 18}, "'weights.bin', which"),
        ({"offset": "x"}, "'weights.bin'"),
    ],
)
def test_external_data_that_is_missing_or_short_is_named(tmp_path: Path, entries: dict[str, str], text: str) -> None:
    with pytest.raises(ModelError) as caught:
        read_model(external(tmp_path, **entries))
    assert text in caught.value.text


def test_external_data_needs_a_folder(tmp_path: Path) -> None:
    assert "given without a folder" in refusal(external(tmp_path).read_bytes()).text


# ---- the extra -----------------------------------------------------------------------------------------------------------


def test_without_the_package_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    (tmp_path / "m.onnx").write_bytes(small_bytes)
    with pytest.raises(UnavailableError) as caught:
        read_model(tmp_path / "m.onnx")
    assert caught.value.hint == "pip install 'mcugrad[onnx]'"


small_bytes = small()
