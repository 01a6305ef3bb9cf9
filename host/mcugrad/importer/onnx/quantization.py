"""QuantizeLinear, DequantizeLinear and what they say: codes, scales and zero points of the file -> those of the graph.

The graph has int8 only. uint8 code q is int8 code q - 128 and so is the zero point, exactly; the same for weights around 128.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from mcugrad.graph.types import Quant, Quantize, Softmax
from mcugrad.importer.onnx.build import BIAS_SCALE_TOLERANCE, FLOAT32, HINT_QDQ, State
from mcugrad.importer.onnx.file import Array, Node, short
from mcugrad.importer.onnx.values import Act, Const, Gate, Layer, Pending, QConst

CODES = ("int8", "uint8")
_OUTPUT_TYPES = {0: "uint8", 2: "uint8", 3: "int8"}


def quant_of(state: State, node: Node, first: int = 1, codes: str = "uint8") -> tuple[Quant, str]:
    """(quantization, type of the codes) of an activation from the scale at input ``first`` and the zero point behind it.

    Without a zero point it is 0 of type ``codes``.
    """
    scale = state.constant(node, first, "scales")
    if scale.size != 1 or scale.dtype.kind != "f":
        node.fail(f"has {scale.size} scales of type {scale.dtype} for an activation, one float is expected", HINT_QDQ)
    zero: Array = state.constant(node, first + 1, "zero points") if node.has(first + 1) else np.zeros((), codes)
    if zero.size != 1:
        node.fail(f"has {zero.size} zero points for an activation, one is expected", HINT_QDQ)
    if zero.dtype.name not in CODES:
        node.fail(f"quantizes to {zero.dtype}, int8 or uint8 is expected", HINT_QDQ)
    real = float(np.float32(scale.ravel()[0]))
    if not np.isfinite(real) or real <= 0:
        node.fail(f"has scale {real:.6g}, it must be finite and above 0", "calibrate again with representative data")
    point = int(zero.ravel()[0])
    return Quant((real,), point - 128 if zero.dtype == np.uint8 else point), zero.dtype.name


def coming(state: State, node: Node) -> tuple[Quant, str]:
    """What a QuantizeLinear node gives its result."""
    default = _OUTPUT_TYPES.get(node.integer("output_dtype", 0))
    if default is None:
        node.fail(f"quantizes to ONNX type {node.integer('output_dtype', 0)}, int8 or uint8 is expected", HINT_QDQ)
    return quant_of(state, node, 1, default)


def quantize(state: State, node: Node) -> None:
    """QuantizeLinear: it ends what was pending, changes a quantization, or is the border."""
    _no_blocks(node)
    v = state.value(node, 0)
    if isinstance(v, Const | QConst):
        state.values[node.outputs[0]] = _quantized_constant(state, node, v)
        return
    quant, codes = coming(state, node)
    name = node.outputs[0]
    if isinstance(v, Gate):
        state.values[name] = v
        return
    if isinstance(v, Pending):
        v = state.materialize(v, name, quant)
        state.values[node.inputs[0]] = v
    if not v.real:
        node.fail("quantizes codes that are quantized already")
    if state.tensors[v.tensor].dtype == FLOAT32:
        v = replace(v, tensor=_border(state, node, v.tensor, quant, name))
    elif _is_last_softmax(state, v.tensor, name, quant):
        state.ends.add(name)
    else:
        v = replace(v, tensor=state.requantized(v.tensor, quant, name))
        state.rename(v.tensor, node.inputs[0], name)
    state.values[name] = replace(v, real=False, codes=codes)


def _is_last_softmax(state: State, tensor: int, name: str, quant: Quant) -> bool:
    """Whether a softmax becomes real numbers again at once and leaves the model so: then its scale may be 1/256, as int8 softmax has it."""
    if quant.scale[0] < state.quant(tensor).scale[0] or not any(
        op.outputs == (tensor,) and isinstance(op.kind, Softmax) for op in state.ops
    ):
        return False
    readers = state.readers.get(name, [])
    if state.uses.get(name, 0) != 1 or len(readers) != 1 or readers[0].op != "DequantizeLinear":
        return False
    last = readers[0].outputs[:1]
    return last[0] in {border.name for border in state.model.outputs} and last[0] not in state.readers


def _border(state: State, node: Node, tensor: int, quant: Quant, name: str) -> int:
    """The float input of the model as int8; one Quantize of it serves all."""
    for op in state.ops:
        if isinstance(op.kind, Quantize) and op.inputs[0] == tensor:
            return state.requantized(op.outputs[0], quant, name)
    return state.op(node, Quantize(), (tensor,), state.tensors[tensor].shape, quant, name)


def dequantize(state: State, node: Node) -> None:
    """DequantizeLinear: of a constant, or the same activation read as real numbers."""
    _no_blocks(node)
    v = state.value(node, 0)
    if isinstance(v, Const):
        state.values[node.outputs[0]] = constant_behind(state, node, v.array, 1, node.integer("axis", 1))
        return
    if isinstance(v, Gate):
        state.values[node.outputs[0]] = v
        return
    if not isinstance(v, Act) or v.real:
        node.fail("dequantizes what is not quantized")
    if node.inputs[0] in state.ends:
        state.values[node.outputs[0]] = replace(v, real=True)
        return
    state.values[node.outputs[0]] = replace(known(state, node, v, 1), real=True)


def known(state: State, node: Node, x: Act, first: int) -> Act:
    """The codes x with the quantization that ``node`` names for them; the model's own input learns it here."""
    quant, codes = quant_of(state, node, first, x.codes)
    t = state.tensors[x.tensor]
    if codes != x.codes:
        node.fail(f"reads {x.codes} codes with a zero point of type {codes}")
    if t.quant is None:
        state.tensors[x.tensor] = replace(t, quant=quant)
    elif t.quant != quant:
        node.fail(
            f"reads '{short(t.name)}' with scale {quant.scale[0]:.6g} and zero point {quant.zero_point}, "
            f"it was written with {t.quant.scale[0]:.6g} and {t.quant.zero_point}",
            "the scales of a QuantizeLinear and of the DequantizeLinear behind it must be equal",
        )
    return x


def raw(state: State, node: Node, k: int) -> Act:
    """Input k of a QLinear operator, whose scale and zero point stand behind it: codes, as an activation in real numbers."""
    x = state.act(node, k)
    if x.real:
        node.fail(f"reads '{short(node.inputs[k])}' as codes, it is not quantized", HINT_QDQ)
    return replace(known(state, node, x, k + 1), real=True)


def finish(state: State, node: Node, v: Pending, first: int, codes: str = "int8") -> None:
    """The result of a QLinear operator whose output scale is input ``first``."""
    quant, codes = quant_of(state, node, first, codes)
    name = node.outputs[0]
    state.values[name] = replace(state.materialize(v, name, quant), real=False, codes=codes)


def _no_blocks(node: Node) -> None:
    if not node.outputs or node.outputs[0] == "":
        node.fail("has no output")
    if node.integer("block_size", 0) != 0:
        node.fail("quantizes in blocks, which is not supported", HINT_QDQ)


# ---- constants -------------------------------------------------------------------------------------------------------


def constant_behind(state: State, node: Node, codes: Array, first: int, axis: int) -> QConst:
    """A constant with the scale and zero point at inputs ``first`` and ``first + 1``, per tensor or along ``axis``."""
    if codes.dtype.name not in (*CODES, "int32"):
        node.fail(f"dequantizes a constant of type {codes.dtype}, int8, uint8 or int32 is expected", HINT_QDQ)
    scale = state.constant(node, first, "scales").astype(np.float32)
    zero: Array = state.constant(node, first + 1, "zero points") if node.has(first + 1) else np.zeros(scale.shape, codes.dtype)
    if zero.dtype.kind not in "iu" or zero.size not in (1, scale.size):
        node.fail(f"has {zero.size} zero points of type {zero.dtype} for {scale.size} scales")
    if scale.size == 1:
        scale, axis = scale.reshape(()), 0
    elif not -codes.ndim <= axis < codes.ndim or scale.shape != (codes.shape[axis],):
        node.fail(f"has {scale.size} scales along axis {axis} for a constant of shape {codes.shape}")
    if zero.size == 1:
        zero = zero.reshape(())
    if not np.isfinite(scale).all() or (scale < 0).any():
        node.fail("has a scale that is negative or not finite", HINT_QDQ)
    return QConst(codes, scale, np.broadcast_to(zero.astype(np.int64), scale.shape), axis % max(codes.ndim, 1))


def _quantized_constant(state: State, node: Node, v: Const | QConst) -> Const:
    """QuantizeLinear of a constant, computed here as ONNX defines it."""
    array = state.numbers(node, v, "values")
    default = np.dtype(_OUTPUT_TYPES.get(node.integer("output_dtype", 0), "int32"))
    zero_type = state.constant(node, 2, "zero points").dtype if node.has(2) else default
    if zero_type.name not in CODES:
        node.fail(f"quantizes a constant to {zero_type}, int8 or uint8 is expected", HINT_QDQ)
    shell = constant_behind(state, node, np.zeros(array.shape, zero_type), 1, node.integer("axis", 1))
    spread = [-1 if k == shell.axis else 1 for k in range(array.ndim)] if shell.scale.ndim else []
    if (shell.scale == 0).any():
        node.fail("has scale 0", HINT_QDQ)
    limits = np.iinfo(zero_type)
    q = np.rint(array.astype(np.float32) / shell.scale.reshape(spread)) + shell.zero_point.reshape(spread)
    return Const(np.clip(q, limits.min, limits.max).astype(zero_type))


def symmetric(state: State, node: Node, q: QConst) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float64]]:
    """Weights as int8 codes around 0, and their scales (1,) or (channels,). Zero points off the middle are rounded away, with a note."""
    if q.codes.dtype == np.int32:
        node.fail("has int32 weights, int8 or uint8 is expected", HINT_QDQ)
    middle = 128 if q.codes.dtype == np.uint8 else 0
    scale = q.scale.astype(np.float64).reshape(-1)
    if (q.zero_point == middle).all():
        return (q.codes.astype(np.int16) - middle).astype(np.int8), scale
    values = q.zero_point.reshape(-1)
    seen = f"{values[0]}" if (values == values[0]).all() else f"{values.min()} to {values.max()}"
    state.note(f"weights with zero point {seen} were rounded to symmetric int8 (outputs differ slightly from the file's)", node.where)
    others = tuple(k for k in range(q.codes.ndim) if k != q.axis) if q.scale.ndim else None
    spread = [-1 if k == q.axis else 1 for k in range(q.codes.ndim)] if q.scale.ndim else []
    centred = q.codes.astype(np.float64) - q.zero_point.reshape(spread)
    ratio = np.maximum(np.abs(centred).max(axis=others), 1) / 127
    return np.rint(centred / ratio.reshape(spread)).astype(np.int8), scale * ratio.reshape(-1)


def with_bias(state: State, node: Node, layer: Layer, x: Act, bias: Const | QConst, channels: int) -> Layer:
    """The layer with a bias of ``channels`` elements (or one for all)."""
    real = state.numbers(node, bias, "biases")
    if real.size not in (1, channels) or (real.size == channels and channels not in (1, *real.shape)):
        node.fail(f"has a bias of shape {real.shape} for {channels} channels")
    b = np.broadcast_to(real.reshape(-1), (channels,))
    found = layer.shifted(b.copy())
    if layer.scale is None or not isinstance(bias, QConst) or bias.codes.dtype != np.int32 or (bias.zero_point != 0).any():
        return found
    expected = np.broadcast_to(state.quant(x.tensor).scale[0] * layer.scale, (channels,))
    given = np.broadcast_to(bias.scale.astype(np.float64).reshape(-1), (channels,))
    error = np.abs(given - expected) / np.where(expected > 0, expected, 1)
    if (error > BIAS_SCALE_TOLERANCE).any():
        worst = int(error.argmax())
        state.note(
            f"bias scale {given[worst]:.6g} is not input scale times weight scale {expected[worst]:.6g}, biases were rounded to the latter",
            node.where,
        )
        return found
    return replace(found, codes=np.broadcast_to(bias.codes.reshape(-1), (channels,)).astype(np.int64)) if layer.b is None else found


def operand(state: State, node: Node, v: Const | QConst, quant_needed: bool) -> tuple[Array, Quant | None]:
    """A constant operand of an elementwise operator: float32, or int8 codes with their quantization."""
    if not quant_needed:
        return state.numbers(node, v, "operands").astype(np.float32), None
    if isinstance(v, QConst) and v.scale.ndim == 0 and v.codes.dtype.name in CODES and float(v.scale) > 0:
        shift = 128 if v.codes.dtype == np.uint8 else 0
        zero_point = int(v.zero_point) - shift
        if -128 <= zero_point <= 127:
            return (v.codes.astype(np.int16) - shift).astype(np.int8), Quant((float(v.scale),), zero_point)
    real = state.numbers(node, v, "operands")
    peak = float(np.abs(real).max(initial=0.0))
    scale = float(np.float32(peak / 127)) if peak > 0 else 1.0
    if real.size > 1 and scale > 0:
        state.note("float operands were quantized to int8", node.where)
    if scale <= 0 or not np.isfinite(scale):
        node.fail(f"has operands up to {peak:.3g}, which int8 cannot hold")
    return np.clip(np.rint(real / scale), -127, 127).astype(np.int8), Quant((scale,), 0)


def requantize_all(state: State, acts: list[Act], quant: Quant, name: str) -> list[Act]:
    """Activations brought to one quantization."""
    return [replace(a, tensor=state.requantized(a.tensor, quant, f"{name}/{k}")) for k, a in enumerate(acts)]
