"""Float and hybrid models, read to be quantized: all in float32 afterwards, whatever the file stores."""

from __future__ import annotations

import numpy as np
import pytest
import tflite

from helpers.shared import shared
from helpers.tflite_builder import ModelBuilder, options
from mcugrad.errors import ModelError
from mcugrad.graph import Add, Graph, Linear, Pad, Quant, Unary
from mcugrad.importer import import_tflite, read_model

BUILTIN = tflite.BuiltinOperator
W = np.array([[1, -2, 3, 4], [0, 5, -6, 7], [8, 9, -10, 11]], np.int8)


class FloatFiles(ModelBuilder):
    """A float fully connected layer (1,4) -> (1,3), its weights stored in one way or another."""

    def floats(self, shape: tuple[int, ...]) -> int:
        return self.tensor(f"f{len(self._tensors)}", shape, "float32")

    def numbers(self, data: np.ndarray, quant: Quant | None = None) -> int:
        return self.tensor(f"n{len(self._tensors)}", data.shape, data.dtype.name, quant=quant, data=data)

    def layer(self, x: int, w: int, bias: int = -1) -> int:
        y = self.floats((1, 3))
        self.op(BUILTIN.FULLY_CONNECTED, [x, w, bias], [y], options("FullyConnectedOptions"))
        return y

    def expand(self, w: int) -> int:
        y = self.floats(self.shape(w))
        self.op(BUILTIN.DEQUANTIZE, [w], [y], options("DequantizeOptions"))
        return y


def _layer(f: FloatFiles, weights: int) -> bytes:
    x = f.floats((1, 4))
    y = f.layer(x, weights, f.numbers(np.array([1, 2, 3], np.float32)))
    return f.finish([x], [y])


def _weights(graph: Graph) -> np.ndarray:
    op = next(op for op in graph.ops if isinstance(op.kind, Linear))
    data = graph.tensors[op.inputs[1]].data
    assert data is not None
    return data


def floats(data: bytes) -> Graph:
    return import_tflite(data, "m", allow_float=True)


PLAIN = W.astype(np.float32) / 2
PER_TENSOR = Quant((0.5,))
PER_ROW = Quant((0.5, 0.25, 2.0))


def _uint8() -> bytes:
    f = FloatFiles()
    return _layer(f, f.numbers((W.astype(int) + 100).astype(np.uint8), Quant((0.5,), 100)))


def _stored(data: np.ndarray, quant: Quant | None = None, expanded: bool = False) -> bytes:
    f = FloatFiles()
    w = f.numbers(data, quant)
    return _layer(f, f.expand(w) if expanded else w)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (lambda: _stored(PLAIN), PLAIN),
        (lambda: _stored(W, PER_TENSOR), PLAIN),
        (lambda: _stored(W, PER_ROW), W * np.array([[0.5], [0.25], [2.0]], np.float32)),
        (_uint8, PLAIN),
        (lambda: _stored(PLAIN.astype(np.float16)), PLAIN),
        (lambda: _stored(PLAIN.astype(np.float16), expanded=True), PLAIN),
        (lambda: _stored(W, PER_TENSOR, expanded=True), PLAIN),
    ],
    ids=["float32", "int8", "int8 per row", "uint8", "float16", "float16 expanded", "int8 expanded"],
)
def test_weights_are_float32_whatever_the_file_stores(data, expected: np.ndarray) -> None:
    graph = floats(data())
    assert [type(op.kind) for op in graph.ops] == [Linear]
    np.testing.assert_array_equal(_weights(graph), expected)
    assert _weights(graph).dtype == np.float32
    with pytest.raises(ModelError, match=r"float|hybrid"):
        import_tflite(data(), "m")


@pytest.mark.parametrize("scale", [float("nan"), float("inf")])
def test_weights_that_are_not_finite(scale: float) -> None:
    with pytest.raises(ModelError, match="values that are NaN or infinite"):
        floats(_stored(W, Quant((scale,))))


def test_scales_that_do_not_fit_the_weights() -> None:
    with pytest.raises(ModelError, match="has 2 scales along axis 0"):
        floats(_stored(W, Quant((1.0, 2.0))))


def test_a_bias_of_another_size() -> None:
    f = FloatFiles()
    x = f.floats((1, 4))
    y = f.layer(x, f.numbers(PLAIN), f.numbers(np.ones(2, np.float32)))
    with pytest.raises(ModelError, match=r"bias of shape \(2,\), \(3,\) is expected"):
        floats(f.finish([x], [y]))


def test_an_int8_part_of_a_float_model_is_refused() -> None:
    f = FloatFiles()
    x = f.floats((1, 4))
    y = f.layer(x, f.numbers(PLAIN))
    q = f.quantize(y, Quant((0.1,)))
    with pytest.raises(ModelError, match="quantizes f2 in a model that computes in float"):
        floats(f.finish([x], [q]))


def test_a_float_part_of_an_int8_model_is_refused() -> None:
    f = FloatFiles()
    x = f.tensor("x", (1, 4), quant=Quant((0.1,)))
    y = f.dequantize(x)
    z = f.floats((1, 4))
    f.op(BUILTIN.TANH, [y], [z])
    q = f.quantize(z, Quant((0.1,)))
    w = f.linear(q, W, (0.1,), None, Quant((1.0,)))
    for allow in (True, False):
        with pytest.raises(ModelError, match="turns an inner tensor into float"):
            import_tflite(f.finish([x], [w]), "m", allow_float=allow)


def test_constants_and_pads_of_a_float_model() -> None:
    f = FloatFiles()
    x = f.floats((1, 4))
    y = f.floats((1, 4))
    f.op(BUILTIN.ADD, [x, f.numbers(np.array([1.5], np.float32))], [y], options("AddOptions"))
    z = f.floats((1, 6))
    f.op(BUILTIN.PAD, [y, f.numbers(np.array([[0, 0], [1, 1]], np.int32))], [z], options("PadOptions"))
    graph = floats(f.finish([x], [z]))
    assert [type(op.kind) for op in graph.ops] == [Add, Pad]
    assert graph.tensors[graph.ops[0].inputs[1]].data == np.array([1.5], np.float32)


def test_a_float_pad_with_a_value_is_refused() -> None:
    f = FloatFiles()
    x, z = f.floats((1, 4)), f.floats((1, 6))
    pads, fill = f.numbers(np.array([[0, 0], [1, 1]], np.int32)), f.numbers(np.array([-1], np.float32))
    f.op(BUILTIN.PADV2, [x, pads, fill], [z], options("PadV2Options"))
    with pytest.raises(ModelError, match="fills with -1: a float model may only fill with 0"):
        floats(f.finish([x], [z]))


def test_functions_have_no_quantization_to_check() -> None:
    f = FloatFiles()
    x, y = f.floats((1, 4)), f.floats((1, 4))
    f.op(BUILTIN.LOGISTIC, [x], [y])
    assert [type(op.kind) for op in floats(f.finish([x], [y])).ops] == [Unary]


def test_an_int8_model_is_read_as_ever() -> None:
    path = shared("models/mlperf_tiny/kws_ref_model_int8.tflite")
    a, b = read_model(path), read_model(path, allow_float=True)
    assert a.ops == b.ops


def test_a_hybrid_model_has_the_weights_of_its_int8_twin() -> None:
    """Both were made from the same float model."""
    hybrid = read_model(shared("models/mlperf_tiny/kws_ref_model_float32.tflite"), allow_float=True)
    int8 = read_model(shared("models/mlperf_tiny/kws_ref_model_int8.tflite"))
    for a, b in zip(hybrid.layers, int8.layers, strict=True):
        w, q = hybrid.tensors[a.inputs[1]], int8.tensors[b.inputs[1]]
        axis = 3 if a.name.startswith("dwconv") else 0
        scale = np.array(q.quant.scale).reshape([-1 if d == axis and q.quant.per_channel else 1 for d in range(len(q.shape))])
        real = q.data * scale
        assert np.corrcoef(w.data.reshape(-1), real.reshape(-1))[0, 1] > 0.99
