"""Coverage-guided fuzzing of the ONNX importer: anything that leaves it must be a Graph or a ModelError.

    pip install atheris 'mcugrad[onnx]'       (Linux, a CPython that atheris has a wheel for)
    python tests/fuzz/fuzz_onnx.py --seed build/fuzz/onnx
    python tests/fuzz/fuzz_onnx.py build/fuzz/onnx -max_len=8192 -timeout=5 -rss_limit_mb=2048

The first bytes of an input choose what is changed in a good model, so that most inputs get past the protobuf parser: node inputs, operator
names, attributes, shapes, constants. An input that begins with 0x08 is taken as the bytes of a file. A file that crashes it is written to
the current folder: add what is wrong in it to tests/host/test_onnx_refusals.py. What is accepted as int8 must also survive the way back.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from helpers.onnx_builder import OnnxBuilder
from mcugrad.errors import ModelError
from mcugrad.exporter.onnx import write_onnx
from mcugrad.importer.onnx import SUPPORTED, import_onnx

FILE_BYTE = 0x08


def seeds() -> list[bytes]:
    """Small models that between them have most operators."""
    return [_layers(), _elementwise(), _moves(), _qoperator(), _float()]


def _layers() -> bytes:
    b = OnnxBuilder()
    x = b.qdq(b.input("x", (1, 2, 5, 5)), 0.05, 3)
    w = b.weights((4, 2, 3, 3))
    y = b.qdq(b.node("Relu", b.node("Conv", x, w, b.bias(w, 0.05), pads=[1, 1, 1, 1])), 0.1, -128)
    y = b.qdq(b.node("Conv", y, b.weights((4, 1, 3, 3)), group=4, strides=[2, 2]), 0.1, 0)
    y = b.qdq(b.node("BatchNormalization", y, *(b.const(np.ones(4), np.float32) for _ in range(4))), 0.1, 0)
    y = b.qdq(b.node("GlobalAveragePool", b.node("MaxPool", y, kernel_shape=[2, 2])), 0.05, 0)
    w = b.weights((3, 4))
    y = b.qdq(b.node("Gemm", b.node("Flatten", y), w, b.bias(w, 0.05), transB=1), 0.2, 0)
    return b.finish(b.qdq(b.node("Softmax", y, axis=-1), 1 / 256, -128))


def _elementwise() -> bytes:
    b = OnnxBuilder(opset=14)
    x = b.qdq(b.input("x", (1, 3, 4, 2)), 0.05, 3)
    y = b.qdq(b.node("Add", x, b.qdq(b.input("b", (1, 3, 1, 1)), 0.1, 2)), 0.1, 0)
    for op in ("LeakyRelu", "Sigmoid", "Tanh", "HardSwish"):
        y = b.qdq(b.node(op, y), 0.05, 0)
    y = b.qdq(b.node("PRelu", y, b.dq(b.const(b.random((3, 1, 1))), 0.01)), 0.05, 0)
    y = b.qdq(b.node("Clip", b.node("Mul", x, y), b.const(np.float32(-0.3)), b.const(np.float32(2))), 0.05, 0)
    return b.finish(b.qdq(b.node("Max", y, b.qdq(b.node("Sub", y, x), 0.05, 1)), 0.04, 0))


def _moves() -> bytes:
    b = OnnxBuilder()

    def ints(*values: int) -> str:
        return b.const(np.array(values), np.int64)

    x = b.qdq(b.input("x", (1, 4, 4, 2)), 0.05, 3)
    y = b.node("Pad", b.node("Slice", x, ints(0), ints(3), ints(2), ints(2)), ints(0, 0, 1, 0, 0, 0, 0, 1))
    first, second = b.node("Split", y, ints(1, 3), outputs=2, axis=1)
    y = b.qdq(b.node("Concat", second, first, axis=1), 0.05, 3)
    y = b.node(
        "Resize",
        y,
        "",
        b.const(np.array([1, 1, 2, 2]), np.float32),
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )
    y = b.node("Reshape", b.node("Transpose", y, perm=[0, 2, 3, 1]), ints(0, -1))
    y = b.node("Squeeze", b.node("Unsqueeze", y, ints(0)), ints(0))
    return b.finish(b.qdq(b.node("MatMul", y, b.weights((144, 2), axis=1)), 0.3, 0))


def _qoperator() -> bytes:
    b = OnnxBuilder()
    x = b.q(b.input("x", (1, 2, 4, 4)), 0.05, 5)
    w = [b.const(b.random((3, 2, 3, 3))), *b.scales(0.01, 0)]
    ms = "com.microsoft"
    y = b.node("QLinearConv", x, *b.scales(0.05, 5), *w, *b.scales(0.1, 0), b.const(np.ones(3), np.int32))
    z = b.node("QLinearSigmoid", y, *b.scales(0.1, 0), *b.scales(1 / 256, -128), domain=ms)
    y = b.node("QLinearMul", z, *b.scales(1 / 256, -128), y, *b.scales(0.1, 0), *b.scales(0.1, 1), domain=ms)
    y = b.node("QLinearConcat", *b.scales(0.1, 2), y, *b.scales(0.1, 1), z, *b.scales(1 / 256, -128), domain=ms, axis=1)
    y = b.node("QLinearGlobalAveragePool", y, *b.scales(0.1, 2), *b.scales(0.1, 2), domain=ms)
    y = b.node("Reshape", y, b.const(np.array([1, -1]), np.int64))
    g = [b.const(b.random((2, 6))), *b.scales(0.01, 0), b.const(np.ones(2), np.int32)]
    return b.finish(b.node("QGemm", y, *b.scales(0.1, 2), *g, *b.scales(0.1, 0), domain=ms, transB=1))


def _float() -> bytes:
    b = OnnxBuilder()
    x = b.input("x", (1, 2, 6, 6))
    y = b.node("Conv", x, b.const(np.ones((2, 2, 3, 3)), np.float32))
    y = b.node("BatchNormalization", y, *(b.const(np.ones(2), np.float32) for _ in range(4)))
    y = b.node("AveragePool", b.node("Relu", y), kernel_shape=[2, 2], ceil_mode=1)
    shape = b.node(
        "Concat",
        b.node("Unsqueeze", b.node("Gather", b.node("Shape", y), b.const(0, np.int64)), b.const([0], np.int64)),
        b.const([-1], np.int64),
        axis=0,
    )
    y = b.node("Gemm", b.node("Reshape", y, shape), b.const(np.ones((18, 3)), np.float32))
    return b.finish(b.node("Softmax", b.node("Div", y, b.const(2.0, np.float32))))


class Choices:
    """Numbers from the bytes of an input."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1] if self.at <= len(self.data) else 0

    def below(self, n: int) -> int:
        return (self.byte() << 8 | self.byte()) % max(n, 1)

    def number(self) -> int:
        odd = (0, 1, -1, 2, 3, 127, 128, -128, 255, 65536, 2**31 - 1, -(2**31), 2**62)
        k = self.byte()
        return odd[k % len(odd)] if k < 128 else k - 190


def mutate(model: Any, c: Choices) -> None:
    """One change of a good model."""
    graph = model.graph
    node = graph.node[c.below(len(graph.node))]
    names = [*(n.output[0] for n in graph.node), *(i.name for i in graph.initializer), *(i.name for i in graph.input), ""]
    match c.byte() % 8:
        case 0 if node.input:
            node.input[c.below(len(node.input))] = names[c.below(len(names))]
        case 1:
            name = SUPPORTED[c.below(len(SUPPORTED))]
            node.domain, _, node.op_type = name.rpartition(".")
        case 2 if node.attribute:
            a = node.attribute[c.below(len(node.attribute))]
            a.i = c.number()
            if a.ints:
                a.ints[c.below(len(a.ints))] = c.number()
        case 3 if graph.initializer:
            _mutate_constant(graph.initializer[c.below(len(graph.initializer))], c)
        case 4:
            dims = graph.input[0].type.tensor_type.shape.dim
            dims[c.below(len(dims))].dim_value = c.number()
        case 5:
            model.opset_import[0].version = 11 + c.below(12)
        case 6:
            graph.node.append(node)
            del graph.node[c.below(len(graph.node))]
        case _:
            node.attribute.add(
                name=("axis", "perm", "pads", "strides", "axes", "ceil_mode", "channels_last", "keepdims")[c.byte() % 8],
                type=2,
                i=c.number(),
            )


def _mutate_constant(t: Any, c: Choices) -> None:
    match c.byte() % 3:
        case 0 if t.dims:
            t.dims[c.below(len(t.dims))] = c.number()
        case 1 if t.raw_data:
            raw = bytearray(t.raw_data)
            raw[c.below(len(raw))] = c.byte()
            t.raw_data = bytes(raw)
        case _:
            t.data_type = c.byte() % 24


def model_of(data: bytes) -> bytes:
    """The file that an input stands for."""
    if data[:1] == bytes([FILE_BYTE]):
        return data
    import onnx  # noqa: PLC0415

    c = Choices(data)
    model = onnx.load_from_string(SEEDS[c.byte() % len(SEEDS)])
    while c.at < len(data):
        try:
            mutate(model, c)
        except (ValueError, IndexError):
            continue
    return bytes(model.SerializeToString())


def one_input(data: bytes) -> None:
    """Run one input. Raises what must never be raised."""
    file = model_of(data)
    try:
        graph = import_onnx(file, "fuzz", allow_float=True)
    except ModelError as error:
        assert error.hint
        return
    if all(t.dtype == np.float32 for t in graph.tensors):
        return
    try:
        again = write_onnx(graph)
    except ModelError:
        return
    assert import_onnx(again, "fuzz").rounding == 1


SEEDS = seeds()


def main() -> int:
    if sys.argv[1:2] == ["--seed"]:
        folder = Path(sys.argv[2])
        folder.mkdir(parents=True, exist_ok=True)
        for k, seed in enumerate(SEEDS):
            import_onnx(seed, "seed", allow_float=True)
            (folder / f"seed{k}.onnx").write_bytes(seed)
            (folder / f"seed{k}.choice").write_bytes(bytes([k, 0, 1, 2, 3, 4, 5, 6, 7]))
        return 0
    try:
        import atheris  # noqa: PLC0415
    except ImportError:
        print("atheris is not installed: pip install atheris", file=sys.stderr)
        return 69
    atheris.instrument_all()
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
