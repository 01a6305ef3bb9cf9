"""Every operator as converters write it: the oracle gives the same answers to the file and to what the importer made of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import get_args

import numpy as np
import pytest
import tflite

from helpers.tflite_builder import ModelBuilder, options
from helpers.tiny_graphs import oracle_all, random_samples
from mcugrad.errors import ModelError
from mcugrad.exporter import write_tflite
from mcugrad.graph import Concat, Function, Mean, Op, OpKind, Pad, Quant, Reshape, Slice, Transpose, Unary
from mcugrad.importer import import_tflite, tflite_file
from mcugrad.importer.names import operator_names
from mcugrad.importer.onnx import SUPPORTED
from mcugrad.importer.tflite import _READERS as tflite_readers

Q = Quant((0.05,), -3)
OTHER = Quant((0.07,), 4)
BUILTIN = tflite.BuiltinOperator


class Files(ModelBuilder):
    """The builder, with operators in every form that a file can give them."""

    def image(self, shape: Sequence[int] = (1, 6, 5, 4), quant: Quant = Q) -> int:
        return self.tensor(f"x{len(self._tensors)}", shape, quant=quant)

    def out(self, shape: Sequence[int], quant: Quant = Q) -> int:
        return self.tensor(f"y{len(self._tensors)}", shape, quant=quant)

    def ints(self, values) -> int:
        data = np.array(values, np.int32)
        return self.tensor(f"i{len(self._tensors)}", data.shape, "int32", data=data)

    def codes(self, shape: Sequence[int], quant: Quant = Q) -> int:
        data = np.random.default_rng(3).integers(-128, 128, shape, dtype=np.int8)
        return self.tensor(f"c{len(self._tensors)}", shape, quant=quant, data=data)

    def strided(self, x: int, begin, end, step, shape: Sequence[int], **masks: int) -> int:
        y = self.out(shape)
        self.op(BUILTIN.STRIDED_SLICE, [x, self.ints(begin), self.ints(end), self.ints(step)], [y], options("StridedSliceOptions", **masks))
        return y

    def averaged(self, x: int, axes: Sequence[int], shape: Sequence[int], quant: Quant = Q, keep: bool = False) -> int:
        y = self.out(shape, quant)
        self.op(BUILTIN.MEAN, [x, self.ints(axes)], [y], options("ReducerOptions", KeepDims=keep))
        return y


def one(build: Callable[[Files, int], int | list[int]], shape: Sequence[int] = (1, 6, 5, 4)) -> bytes:
    f = Files()
    x = f.image(shape)
    y = build(f, x)
    return f.finish([x], y if isinstance(y, list) else [y])


def _joined(f: Files, x: int, other: Quant = Q, axis: int = 3, activation: int = 0) -> int:
    y = f.out((1, 6, 5, 6))
    parts = [x, f.codes((1, 6, 5, 2), other)]
    f.op(BUILTIN.CONCATENATION, parts, [y], options("ConcatenationOptions", Axis=axis, FusedActivationFunction=activation))
    return y


def _pieces(f: Files, x: int, sizes: list[int], told: list[int], axis: int = -1) -> list[int]:
    outputs = [f.out((1, 6, 5, n)) for n in sizes]
    f.op(BUILTIN.SPLIT_V, [x, f.ints(told), f.ints(axis)], outputs, options("SplitVOptions", NumSplits=len(sizes)))
    return outputs


def _halves(f: Files, x: int, count: int = 2) -> list[int]:
    outputs = [f.out((1, 3, 5, 4)) for _ in range(2)]
    f.op(BUILTIN.SPLIT, [f.ints([1]), x], outputs, options("SplitOptions", NumSplits=count))
    return outputs


def _packed(f: Files, x: int) -> int:
    y = f.out((1, 6, 5, 2, 4))
    other = f.maximum(x, f.codes((1, 1, 1, 1)))
    f.op(BUILTIN.PACK, [x, other], [y], options("PackOptions", ValuesCount=2, Axis=-2))
    return y


def _unpacked(f: Files, x: int) -> list[int]:
    outputs = [f.out((1, 6, 5)) for _ in range(4)]
    f.op(BUILTIN.UNPACK, [x], outputs, options("UnpackOptions", Num=4, Axis=3))
    return outputs


def _filled(f: Files, x: int, quant: Quant = Q) -> int:
    y = f.out((1, 7, 5, 6))
    fill = f.tensor("fill", (1,), quant=quant, data=np.array([50], np.int8))
    f.op(BUILTIN.PADV2, [x, f.ints([[0, 0], [1, 0], [0, 0], [2, 0]]), fill], [y], options("PadV2Options"))
    return y


def _shape_from_shape(f: Files, x: int) -> int:
    """What Keras makes of Flatten: SHAPE, its first size, PACK with -1, RESHAPE."""
    shape, first, wanted = f.tensor("shape", (4,), "int32"), f.tensor("first", (), "int32"), f.tensor("wanted", (2,), "int32")
    f.op(BUILTIN.SHAPE, [x], [shape], options("ShapeOptions", OutType=2))
    f.op(BUILTIN.STRIDED_SLICE, [shape, f.ints([0]), f.ints([1]), f.ints([1])], [first], options("StridedSliceOptions", ShrinkAxisMask=1))
    f.op(BUILTIN.PACK, [first, f.ints(-1)], [wanted], options("PackOptions", ValuesCount=2, Axis=0))
    y = f.out((1, 120))
    f.op(BUILTIN.RESHAPE, [x, wanted], [y], options("ReshapeOptions"))
    return y


FILES: dict[str, Callable[[], bytes]] = {
    "split": lambda: one(_halves),
    "split_v": lambda: one(lambda f, x: _pieces(f, x, [1, 3], [1, 3])),
    "split_v with a rest": lambda: one(lambda f, x: _pieces(f, x, [2, 1, 1], [2, -1, 1], 3)),
    "strided slice with negative ends": lambda: one(lambda f, x: f.strided(x, [0, -4, 0, 1], [1, -1, 9, -1], [1, 2, 1, 1], (1, 2, 5, 2))),
    "strided slice with masks": lambda: one(
        lambda f, x: f.strided(x, [5, 2, 3, 1], [0, 0, 4, 2], [1, 1, 1, 1], (1, 4, 4, 1), BeginMask=0b101, EndMask=0b011)
    ),
    "strided slice that drops a dimension": lambda: one(
        lambda f, x: f.strided(x, [0, 2, 0, 0], [1, 3, 5, 4], [1, 1, 1, 1], (1, 5, 4), ShrinkAxisMask=0b0010)
    ),
    "pack": lambda: one(_packed),
    "unpack": lambda: one(_unpacked),
    "padv2": lambda: one(_filled),
    "shape from a shape": lambda: one(_shape_from_shape),
    "concat with a constant": lambda: one(_joined),
    "concat along a negative axis": lambda: one(lambda f, x: _joined(f, x, axis=-1)),
    "mean": lambda: one(lambda f, x: f.averaged(x, [1, 2], (1, 4), OTHER)),
    "mean of negative axes": lambda: one(lambda f, x: f.averaged(x, [-2, -3], (1, 1, 1, 4), OTHER, keep=True)),
    "mean over the width": lambda: one(lambda f, x: f.averaged(x, [2], (1, 6, 4), OTHER)),
    "mean over the channels": lambda: one(lambda f, x: f.averaged(x, [3], (1, 6, 5), OTHER)),
    "mean over channels, kept": lambda: one(lambda f, x: f.averaged(x, [-1], (1, 6, 5, 1), OTHER, keep=True)),
    "mean over all": lambda: one(lambda f, x: f.averaged(x, [1, 2, 3], (1,), OTHER)),
    "mean over a sequence": lambda: one(lambda f, x: f.averaged(x, [1], (1, 4), OTHER), (1, 9, 4)),
    "transpose of three": lambda: one(lambda f, x: f.transpose(x, (0, 2, 1)), (1, 6, 4)),
    "slice to the end": lambda: one(lambda f, x: f.slice(x, (0, 1, 0, 3), (1, 5, 5, 1))),
}


@pytest.mark.parametrize("name", FILES)
def test_the_oracle_sees_no_difference(name: str) -> None:
    data = FILES[name]()
    graph = import_tflite(data, "m")
    samples = random_samples(graph, 4)
    before, after = (oracle_all(d, samples, len(graph.outputs)) for d in (data, write_tflite(graph)))
    for expected, got in zip(before, after, strict=True):
        for a, b in zip(expected, got, strict=True):
            np.testing.assert_array_equal(a.reshape(-1), b.reshape(-1))
            assert a.size == 1 or a.std() > 0


def _ops(name: str) -> tuple[Op, ...]:
    return import_tflite(FILES[name](), "m").ops


def test_a_split_is_one_slice_an_output() -> None:
    ops = _ops("split")
    assert [op.name for op in ops] == ["slice_0", "slice_1"]
    assert [op.kind for op in ops] == [Slice((0, 0, 0, 0), (1, 1, 1, 1)), Slice((0, 3, 0, 0), (1, 1, 1, 1))]


def test_a_dropped_dimension_is_a_reshape() -> None:
    assert [type(op.kind) for op in _ops("strided slice that drops a dimension")] == [Slice, Reshape]


def test_arithmetic_with_shapes_leaves_nothing_but_its_result() -> None:
    graph = import_tflite(FILES["shape from a shape"](), "m")
    assert [type(op.kind) for op in graph.ops] == [Reshape]
    assert len(graph.tensors) == 2


def test_a_mean_over_a_sequence_needs_no_transpose() -> None:
    assert [type(op.kind) for op in _ops("mean over a sequence")] == [Reshape, Mean]
    assert [type(op.kind) for op in _ops("mean over the channels")] == [Transpose, Reshape, Mean, Reshape]


def test_what_padv2_fills_with() -> None:
    assert _ops("padv2")[0].kind == Pad((0, 1, 0, 2), (0, 0, 0, 0), 50)


def test_a_negative_axis_counts_from_the_end() -> None:
    assert _ops("concat along a negative axis")[0].kind == Concat(3)


def test_a_uint8_border_becomes_int8_with_the_same_values() -> None:
    """As converters write it for inference_input_type uint8: QUANTIZE at both ends. The inside is int8 as ever."""
    f = Files()
    x = f.tensor("x", (1, 6, 5, 4), "uint8", quant=Quant((0.05,), 125))
    inside = f.out((1, 6, 5, 4))
    f.op(BUILTIN.QUANTIZE, [x], [inside], options("QuantizeOptions"))
    z = f.unary(inside, Unary(Function.HARD_SWISH), OTHER)
    y = f.tensor("y", (1, 6, 5, 4), "uint8", quant=Quant((0.07,), 132))
    f.op(BUILTIN.QUANTIZE, [z], [y], options("QuantizeOptions"))
    data = f.finish([x], [y])
    graph = import_tflite(data, "m")
    assert [op.name for op in graph.ops] == ["requantize_0", "hard_swish_0", "requantize_1"]
    assert (graph.tensors[graph.input].quant, graph.tensors[graph.output].quant) == tuple(
        Quant((float(np.float32(q.scale[0])),), q.zero_point) for q in (Q, OTHER)
    )
    assert graph.notes == ("uint8 in the file, here int8 with codes 128 less: x, y",)
    for sample in random_samples(graph, 4):
        codes = (sample[0].astype(int) + 128).astype(np.uint8)
        expected = oracle_all(data, [(codes,)], 1)[0][0].astype(int) - 128
        np.testing.assert_array_equal(oracle_all(write_tflite(graph), [sample], 1)[0][0], expected)


# ---- what is refused -------------------------------------------------------------------------------------------------


def _arithmetic(code: str, table: str, shapes: Sequence[Sequence[int]], quants: Sequence[Quant] = (Q, Q, Q)) -> bytes:
    f = Files()
    a, b = f.image(shapes[0], quants[0]), f.image(shapes[1], quants[1])
    y = f.out(shapes[2], quants[2])
    f.op(getattr(BUILTIN, code), [a, b], [y], options(table))
    return f.finish([a, b], [y])


def _two_constants() -> bytes:
    f = Files()
    x = f.image()
    f.op(BUILTIN.ADD, [f.codes((4,)), f.codes((4,))], [f.out((4,))], options("AddOptions"))
    return f.finish([x], [f.maximum(x, x)])


def _function(code: str, quant: Quant) -> bytes:
    f = Files()
    x = f.image()
    y = f.out((1, 6, 5, 4), quant)
    f.op(getattr(BUILTIN, code), [x], [y])
    return f.finish([x], [y])


def _slopes(shape: Sequence[int], constant: bool = True) -> bytes:
    f = Files()
    x = f.image()
    alpha = f.codes(shape) if constant else f.maximum(x, x)
    y = f.out((1, 6, 5, 4))
    f.op(BUILTIN.PRELU, [x, alpha], [y])
    return f.finish([x], [y])


def _resized(size: list[int], **fields: int) -> bytes:
    f = Files()
    x = f.image()
    y = f.out((1, 9, 9, 4))
    f.op(BUILTIN.RESIZE_NEAREST_NEIGHBOR, [x, f.ints(size)], [y], options("ResizeNearestNeighborOptions", **fields))
    return f.finish([x], [y])


def _permuted(perm: list[int]) -> bytes:
    f = Files()
    x = f.image()
    y = f.out((1, 6, 5, 4))
    f.op(BUILTIN.TRANSPOSE, [x, f.ints(perm)], [y], options("TransposeOptions"))
    return f.finish([x], [y])


def _sliced(begin: list[int], size: list[int]) -> bytes:
    f = Files()
    x = f.image()
    y = f.out((1, 6, 5, 4))
    f.op(BUILTIN.SLICE, [x, f.ints(begin), f.ints(size)], [y], options("SliceOptions"))
    return f.finish([x], [y])


def _strided(begin: list[int], end: list[int], step: list[int], **masks: int) -> bytes:
    return one(lambda f, x: f.strided(x, begin, end, step, (1, 6, 5, 4), **masks))


def _unknown_shape() -> bytes:
    f = Files()
    x = f.image()
    y = f.out((1, 120))
    f.op(BUILTIN.RESHAPE, [x, f.tensor("asked", (2,), "int32")], [y], options("ReshapeOptions"))
    return f.finish([x], [y])


WHOLE = [1, 6, 5, 4]
REFUSED: dict[str, tuple[Callable[[], bytes], str]] = {
    "both operands stretched": (
        lambda: _arithmetic("MUL", "MulOptions", [(1, 6, 1, 4), (1, 1, 5, 4), WHOLE]),
        r"combines shapes \(1, 6, 1, 4\) and \(1, 1, 5, 4\) to \(1, 6, 5, 4\), but only one",
    ),
    "operands that do not fit": (lambda: _arithmetic("SUB", "SubOptions", [WHOLE, (1, 6, 5, 3), WHOLE]), "which do not fit together"),
    "a maximum of two quantizations": (
        lambda: _arithmetic("MAXIMUM", "MaximumMinimumOptions", [WHOLE, WHOLE, WHOLE], (Q, OTHER, Q)),
        r"MAXIMUM reads x1 with quantization \(0.07, 4\) and writes y2 with \(0.05, -3\)",
    ),
    "a concat of two quantizations": (
        lambda: one(lambda f, x: _joined(f, x, OTHER)),
        r"CONCATENATION reads c2 with quantization \(0.07, 4\) and writes y1 with \(0.05, -3\): .* must be equal",
    ),
    "a concat with an activation": (lambda: one(lambda f, x: _joined(f, x, activation=1)), "fused activation relu"),
    "a concat of other sizes": (
        lambda: one(lambda f, x: _joined(f, x, axis=1)),
        r"joins shapes \(1, 6, 5, 4\) and \(1, 6, 5, 2\) along axis 1",
    ),
    "a concat along no axis": (lambda: one(lambda f, x: _joined(f, x, axis=4)), "names axis 4 of a tensor with 4 sizes"),
    "a constant sum": (_two_constants, "computes with two constants"),
    "logistic scale": (lambda: _function("LOGISTIC", Quant((1 / 255,), -128)), r"scale 0.0039215\d+ .*LOGISTIC has exactly 1/256 and -128"),
    "tanh zero point": (lambda: _function("TANH", Quant((1 / 128,), 1)), "zero point 1, an int8 TANH has exactly 1/128 and 0"),
    "slopes per element": (lambda: _slopes((6, 5, 4)), r"slopes of shape \(6, 5, 4\) for 4 channels"),
    "slopes for other channels": (lambda: _slopes((3,)), r"slopes of shape \(3,\) for 4 channels"),
    "slopes that are computed": (lambda: _slopes((), constant=False), "slopes that are not a constant"),
    "a resize to nothing": (lambda: _resized([0, 9]), r"resizes to \[0, 9\]"),
    "a resize of one size": (lambda: _resized([9]), r"resizes to \[9\]"),
    "a resize in two ways": (lambda: _resized([9, 9], AlignCorners=1, HalfPixelCenters=1), "only one of them"),
    "no permutation": (lambda: _permuted([0, 1, 1, 3]), r"has the permutation \(0, 1, 1, 3\)"),
    "a permutation of three": (lambda: _permuted([0, 1, 2]), r"permutation \(0, 1, 2\) for 4 sizes"),
    "a permutation beyond the rank": (lambda: _permuted([0, 1, 2, 4]), "names axis 4"),
    "a slice beyond the end": (lambda: _sliced([0, 1, 0, 0], [1, 6, 5, 4]), r"takes \[1, 6, 5, 4\] elements from \[0, 1, 0, 0\]"),
    "a slice before the begin": (lambda: _sliced([0, -1, 0, 0], [1, 1, 5, 4]), "elements from"),
    "a slice of three": (lambda: _sliced([0, 0, 0], [1, 6, 5]), "has 3 begins and 3 sizes"),
    "a stride backwards": (lambda: _strided([0, 5, 0, 0], [1, 0, 5, 4], [1, -1, 1, 1]), "has stride -1, only strides from 1 up"),
    "a slice of nothing": (lambda: _strided([0, 3, 0, 0], [1, 3, 5, 4], [1, 1, 1, 1]), "takes nothing from 3 to 3 of 6"),
    "a dropped element that is not there": (
        lambda: _strided([0, 6, 0, 0], WHOLE, [1, 1, 1, 1], ShrinkAxisMask=2),
        "takes element 6 of 6",
    ),
    "a new axis": (lambda: _strided([0] * 4, WHOLE, [1] * 4, NewAxisMask=1), "new_axis_mask"),
    "an ellipsis": (lambda: _strided([0] * 4, WHOLE, [1] * 4, EllipsisMask=1), "ellipsis_mask"),
    "ends from begins": (lambda: _strided([0] * 4, WHOLE, [1] * 4, Offset=1), "offset"),
    "five begins": (lambda: _strided([0] * 5, [1] * 5, [1] * 5), "has 5 begins"),
    "a split into other parts": (lambda: one(lambda f, x: _halves(f, x, 3)), "splits 6 elements into 3 parts for 2 outputs"),
    "split_v of other sizes": (lambda: one(lambda f, x: _pieces(f, x, [1, 3], [1, 2])), r"splits 4 elements into \[1, 2\]"),
    "split_v with two rests": (lambda: one(lambda f, x: _pieces(f, x, [1, 3], [-1, -1])), r"splits 4 elements into \[-1, -1\]"),
    "a fill of another quantization": (lambda: one(lambda f, x: _filled(f, x, quant=OTHER)), "reads x0 with quantization .* fill with"),
    "a mean over no axis": (lambda: one(lambda f, x: f.averaged(x, [], (1, 6, 5, 4))), "every size must be 1 or more"),
    "a mean over an axis too many": (lambda: one(lambda f, x: f.averaged(x, [4], (1, 6, 5, 4))), "names axis 4"),
    "a mean to a scalar": (lambda: one(lambda f, x: f.averaged(x, [0, 1, 2, 3], ())), "is a scalar"),
    "a slice of a constant": (lambda: one(lambda f, _: f.strided(f.codes((4,)), [0], [2], [1], (2,))), "reads the constant tensor 1"),
    "a shape that is not known": (_unknown_shape, "asked.* is not a constant"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str) -> None:
    build, text = REFUSED[case]
    with pytest.raises(ModelError, match=text) as caught:
        import_tflite(build(), "m")
    assert caught.value.exit_code == 3
    assert caught.value.hint


def test_constants_become_tensors_with_data() -> None:
    graph = import_tflite(one(_joined), "m")
    assert [t.data is None for t in graph.tensors] == [True, True, False]
    assert graph.tensors[2].quant == Quant((float(np.float32(0.05)),), -3)


# ---- the list of operators -------------------------------------------------------------------------------------------


def test_the_list_of_operators_is_that_of_the_readers() -> None:
    assert set(operator_names("tflite")) == set(tflite_readers)
    assert set(operator_names("onnx")) == set(SUPPORTED)
    assert {kind for file in ("tflite", "onnx") for kinds in operator_names(file).values() for kind in kinds} == set(get_args(OpKind))


@pytest.mark.parametrize("name", FILES)
def test_operators_become_what_the_list_says(name: str) -> None:
    data = FILES[name]()
    codes = [op.code for op in tflite_file.read(data).ops]
    kinds = {type(op.kind) for op in import_tflite(data, "m").ops}
    for code in codes:
        listed = operator_names("tflite")[code]
        assert not listed or kinds & set(listed) or code in ("STRIDED_SLICE", "PACK")
