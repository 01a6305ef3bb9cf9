"""What the readers of operators share: the state on the way through a file, and the checks of tensors, constants, weights and options.

A model is int8 or, for quantization here, float32 throughout (``State.floating``). Constants of a float model are float32 whatever the
file stores: float16 and quantized weights are expanded on the way in.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from mcugrad.errors import ModelError
from mcugrad.graph.types import Activation, OpKind, Quant, Tensor
from mcugrad.importer.schemes import HINT_INT8
from mcugrad.importer.tflite_file import ACTIVATION_NAMES, ACTIVATIONS, NO_TENSOR, RawModel, RawOp, RawOptions, RawTensor
from mcugrad.importer.windows import Pads, same_pads, window_outputs

MAX_TENSOR_ELEMENTS = 1 << 26
MAX_RANK = 8
BIAS_SCALE_TOLERANCE = 0.01
HINT_AGAIN = "the file contradicts itself, convert the model again"
HINT_BATCH_1 = "export the model with batch size 1"

INT8 = np.dtype(np.int8)
INT32 = np.dtype(np.int32)
FLOAT32 = np.dtype(np.float32)

Shape = tuple[int, ...]
Array = npt.NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class Found:
    """A graph op that an operator, or a part of one, becomes: its kind, what it reads, what it writes and in which shape."""

    kind: OpKind
    inputs: tuple[int, ...]
    output: int
    shape: Shape


@dataclass(slots=True)
class State:
    """What is known on the way through the operators.

    ``tensors`` are those of the graph so far, by their index in the file; what no file has (the inside of an operator that becomes several
    ops) is numbered behind the file's. ``values`` are results of constants, ``quantized`` the float inputs that have their QUANTIZE,
    ``unsigned`` the inputs and outputs that are uint8 in the file. The rest is what the notes will say: channels by operator.
    """

    raw: RawModel
    floating: bool
    scratches: int = 0
    tensors: dict[int, Tensor] = field(default_factory=dict)
    values: dict[int, Array] = field(default_factory=dict)
    quantized: set[int] = field(default_factory=set)
    unsigned: set[int] = field(default_factory=set)
    pruned: dict[int, int] = field(default_factory=dict)
    saturated: dict[int, int] = field(default_factory=dict)
    odd_bias_axes: dict[int, int] = field(default_factory=dict)
    rescaled: dict[int, int] = field(default_factory=dict)

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The type of every activation."""
        return FLOAT32 if self.floating else INT8

    def scratch(self, name: str, x: Tensor, shape: Shape) -> int:
        """A tensor that only the graph has, with the type and the quantization of another."""
        index = len(self.raw.tensors) + self.scratches
        self.scratches += 1
        self.tensors[index] = Tensor(name, shape, x.dtype, x.quant)
        return index


def fail(op: RawOp, text: str, hint: str = HINT_AGAIN) -> NoReturn:
    raise ModelError(f"{op.where} {text}", hint)


# ---- tensors ---------------------------------------------------------------------------------------------------------


def check_shape(t: RawTensor) -> None:
    if len(t.shape) > MAX_RANK or any(d < 1 for d in t.shape):
        raise ModelError(f"{t.where} has shape {t.shape}: every size must be 1 or more, at most {MAX_RANK} of them", HINT_AGAIN)
    if math.prod(t.shape) > MAX_TENSOR_ELEMENTS:
        raise ModelError(f"{t.where} has shape {t.shape}, the limit is {MAX_TENSOR_ELEMENTS:,} elements", "use a smaller model")


def zero_point(t: RawTensor) -> int:
    """The zero point that all scales of a tensor share."""
    if len(t.zero_point) not in (0, 1, len(t.scale)):
        raise ModelError(f"{t.where} has {len(t.scale)} scales and {len(t.zero_point)} zero points", HINT_AGAIN)
    if len(set(t.zero_point)) > 1:
        raise ModelError(f"{t.where} has zero points that differ by channel", HINT_INT8)
    zero = t.zero_point[0] if t.zero_point else 0
    if not -(2**31) <= zero < 2**31:
        raise ModelError(f"{t.where} has zero point {zero}, it does not fit 32 bits", HINT_AGAIN)
    return zero


def activation_quant(t: RawTensor) -> Quant:
    """The one scale and the zero point of an int8 tensor."""
    if len(t.scale) != 1:
        raise ModelError(f"{t.where} has {len(t.scale)} scales, an activation needs exactly one", HINT_INT8)
    if not math.isfinite(t.scale[0]) or t.scale[0] <= 0:
        raise ModelError(f"{t.where} has scale {t.scale[0]:.6g}, it must be finite and above 0", "calibrate again with representative data")
    zero = zero_point(t)
    if not -128 <= zero <= 127:
        raise ModelError(f"{t.where} has zero point {zero}, the range of int8 is -128 to 127", HINT_INT8)
    return Quant(t.scale, zero)


def activation(t: RawTensor, dtype: np.dtype[np.generic]) -> Tensor:
    """A tensor that a model computes, int8 with its quantization or float32 without."""
    check_shape(t)
    if not t.shape:
        raise ModelError(f"{t.where} is a scalar, an activation has at least one size", HINT_AGAIN)
    return Tensor(t.name, t.shape, dtype, activation_quant(t) if dtype == INT8 else None)


def unsigned_border(t: RawTensor) -> Tensor:
    """An input or output that is uint8 in the file: int8 here, code and zero point 128 less."""
    check_shape(t)
    zero = zero_point(t) - 128
    return Tensor(t.name, t.shape, INT8, activation_quant(replace(t, zero_point=(zero,))))


def quant_of(tensor: Tensor) -> Quant:
    """The quantization of an int8 tensor."""
    assert tensor.quant is not None
    return tensor.quant


def output(state: State, op: RawOp) -> RawTensor:
    """The only output of an operator."""
    if len(op.outputs) != 1:
        fail(op, f"has {len(op.outputs)} outputs, one is expected")
    return state.raw.tensors[op.outputs[0]]


def operand(state: State, op: RawOp, slot: int) -> RawTensor:
    """Input ``slot`` as the file has it."""
    if slot >= len(op.inputs) or op.inputs[slot] == NO_TENSOR:
        fail(op, f"has no input {slot}")
    return state.raw.tensors[op.inputs[slot]]


def is_constant(state: State, t: RawTensor) -> bool:
    return t.data is not None or t.index in state.values


def ready(state: State, op: RawOp, slot: int) -> Tensor:
    """An activation of any type that exists when the operator runs."""
    t = operand(state, op, slot)
    if is_constant(state, t):
        fail(op, f"reads the constant {t.where} where an activation is expected", "fold the constant into the layer before it")
    if t.index not in state.tensors:
        fail(op, f"reads {t.where} before any operator has written it")
    return state.tensors[t.index]


def value(state: State, op: RawOp, slot: int) -> Tensor:
    """An activation of the model's own type."""
    x = ready(state, op, slot)
    if op.inputs[slot] in state.unsigned:
        fail(op, f"reads {x.name}, which is uint8: only QUANTIZE may read a uint8 input", HINT_INT8)
    if x.dtype != state.dtype:
        _wrong_type(state, op, x)
    return x


def _wrong_type(state: State, op: RawOp, x: Tensor) -> NoReturn:
    why = "this model computes in float" if state.floating else "only QUANTIZE may read a float input"
    fail(op, f"reads {x.name} as {x.dtype}, {state.dtype} is expected: {why}", HINT_INT8)


def value_or_constant(state: State, op: RawOp, slot: int) -> Tensor:
    """An activation, or a constant in its place, which is added to the graph."""
    t = operand(state, op, slot)
    if not is_constant(state, t):
        return value(state, op, slot)
    if t.index not in state.tensors:
        if state.floating:
            data = floats(state, t)
            state.tensors[t.index] = Tensor(t.name, t.shape, FLOAT32, None, data)
        else:
            state.tensors[t.index] = Tensor(t.name, t.shape, INT8, activation_quant(t), constant(t, "int8"))
    tensor = state.tensors[t.index]
    if tensor.dtype != state.dtype:
        _wrong_type(state, op, tensor)
    return tensor


def image(state: State, op: RawOp) -> Tensor:
    """Input 0 as one image (1, H, W, C)."""
    x = value(state, op, 0)
    if len(x.shape) != 4 or x.shape[0] != 1:
        fail(op, f"reads {x.name} of shape {x.shape}, (1, H, W, C) is expected", HINT_BATCH_1)
    return x


def require_same_quant(state: State, op: RawOp, x: Tensor, y: RawTensor) -> None:
    """What an operator that only moves, compares or averages writes must have the quantization of what it reads."""
    if state.floating:
        return
    a, b = quant_of(x), activation_quant(y)
    if a.zero_point != b.zero_point or not math.isclose(a.scale[0], b.scale[0], rel_tol=1e-6):
        fail(
            op,
            f"reads {x.name} with quantization ({a.scale[0]:.6g}, {a.zero_point}) and writes {y.name} with ({b.scale[0]:.6g}, "
            f"{b.zero_point}): this operator cannot change the quantization, they must be equal",
            HINT_INT8,
        )


def require_output_quant(state: State, op: RawOp, scale: float, zero: int) -> None:
    """Some functions have one quantization of their output by specification."""
    if state.floating:
        return
    y = activation_quant(output(state, op))
    if y.scale[0] != scale or y.zero_point != zero:
        fail(
            op,
            f"has output scale {y.scale[0]:.8g} and zero point {y.zero_point}, an int8 {op.code} has exactly "
            f"1/{round(1 / scale)} and {zero}",
            f"convert the model again, or remove the {op.code}",
        )


# ---- constants -------------------------------------------------------------------------------------------------------


def constant(t: RawTensor, dtype: str) -> Array:
    """The value of a constant tensor of the file: a read-only array of the tensor's shape, aligned."""
    check_shape(t)
    if t.type != dtype:
        raise ModelError(f"{t.where} is {t.type}, {dtype} is expected", HINT_INT8)
    if t.data is None:
        raise ModelError(f"{t.where} is not a constant", "export a model with fixed weights")
    native = np.dtype(dtype)
    expected = math.prod(t.shape) * native.itemsize
    if t.data.size != expected:
        raise ModelError(f"{t.where} of shape {t.shape} needs {expected:,} bytes, its buffer has {t.data.size:,}", HINT_AGAIN)
    return np.frombuffer(t.data.tobytes(), native.newbyteorder("<")).astype(native, copy=False).reshape(t.shape)


def integers(state: State, op: RawOp, slot: int) -> npt.NDArray[np.int64]:
    """A constant operand of int32 or int64, from the file or from arithmetic with constants."""
    t = operand(state, op, slot)
    if t.index in state.values and state.values[t.index].dtype.kind == "i":
        return state.values[t.index].astype(np.int64)
    return constant(t, "int64" if t.type == "int64" else "int32").astype(np.int64)


def floats(state: State, t: RawTensor) -> npt.NDArray[np.float32]:
    """A constant of a float model as float32, expanded from float16 or from a quantized type where it is one."""
    if t.index in state.values:
        found = state.values[t.index]
        if found.dtype != FLOAT32:
            raise ModelError(f"{t.where} is {found.dtype}, float32 is expected", HINT_AGAIN)
        return found.astype(np.float32, copy=False)
    data = expanded(t) if t.type in ("int8", "uint8") else constant(t, t.type if t.type == "float16" else "float32").astype(np.float32)
    if not np.isfinite(data).all():
        raise ModelError(f"{t.where} has values that are NaN or infinite", "train the model again: it has diverged")
    return data


def expanded(t: RawTensor) -> npt.NDArray[np.float32]:
    """scale · (q - zero point) of a constant with one scale, or one per index of its axis."""
    q = constant(t, t.type).astype(np.int32)
    zero = zero_point(t)
    shape: Shape = ()
    if len(t.scale) != 1:
        if not 0 <= t.axis < q.ndim or len(t.scale) != q.shape[t.axis]:
            raise ModelError(f"{t.where} of shape {t.shape} has {len(t.scale)} scales along axis {t.axis}", HINT_AGAIN)
        shape = tuple(-1 if d == t.axis else 1 for d in range(q.ndim))
    scale = np.array(t.scale, np.float32).reshape(shape)
    with np.errstate(over="ignore", invalid="ignore"):
        return (q.astype(np.int64) - zero).astype(np.float32) * scale


# ---- weights and biases ----------------------------------------------------------------------------------------------


def weights(state: State, op: RawOp, axis: int) -> Tensor:
    """Input 1 as weights: int8, symmetric, with one scale or one per channel of ``axis``; or float32. Adds it to the graph."""
    t = operand(state, op, 1)
    if state.floating:
        if not is_constant(state, t):
            fail(op, f"has weights that are not a constant, {t.where}", "export a model with fixed weights")
        w = Tensor(t.name, t.shape, FLOAT32, None, floats(state, t))
    else:
        w = _int8_weights(state, op, t, axis)
    if len(w.shape) <= axis:
        fail(op, f"has weights of shape {t.shape}, {axis + 1} sizes are expected")
    state.tensors[t.index] = w
    return w


def _int8_weights(state: State, op: RawOp, t: RawTensor, axis: int) -> Tensor:
    data = constant(t, "int8")
    if data.ndim <= axis:
        fail(op, f"has weights of shape {t.shape}, {axis + 1} sizes are expected")
    if zero_point(t) != 0:
        fail(op, f"has weights with zero point {zero_point(t)}, int8 weights are symmetric (0)", HINT_INT8)
    if len(t.scale) not in (1, t.shape[axis]):
        fail(op, f"has {len(t.scale)} weight scales for {t.shape[axis]} output channels", HINT_INT8)
    if len(t.scale) > 1 and t.axis != axis:
        fail(op, f"has weights quantized along axis {t.axis}, it must be axis {axis}, the output channels", HINT_INT8)
    for channel, scale in enumerate(t.scale):
        if not math.isfinite(scale) or scale < 0:
            fail(op, f"has weight scale {scale:.6g} in channel {channel}, it must be finite and not negative", HINT_INT8)
    pruned = sum(scale == 0 for scale in t.scale)
    if pruned:
        state.pruned[op.index] = pruned
    return Tensor(t.name, t.shape, INT8, Quant(t.scale, 0, axis if len(t.scale) > 1 else 0), data)


def bias(state: State, op: RawOp, x: Tensor, w: Tensor, channels: int) -> tuple[int, ...]:
    """Input 2 as the bias, int32 with scale s_x · s_w or float32; () where there is none. Adds it to the graph."""
    if len(op.inputs) > 3:
        fail(op, f"has {len(op.inputs)} inputs, at most 3 are expected")
    if len(op.inputs) < 3 or op.inputs[2] == NO_TENSOR:
        return ()
    t = operand(state, op, 2)
    data = floats(state, t) if state.floating else constant(t, "int32")
    if t.shape != (channels,) or data.shape != t.shape:
        fail(op, f"has a bias of shape {t.shape}, ({channels},) is expected")
    if state.floating:
        state.tensors[t.index] = Tensor(t.name, t.shape, FLOAT32, None, data)
        return (t.index,)
    if zero_point(t) != 0:
        fail(op, f"has a bias with zero point {zero_point(t)}, 0 is expected", HINT_INT8)
    if len(t.scale) not in (1, channels):
        fail(op, f"has {len(t.scale)} bias scales for {channels} output channels", HINT_INT8)
    _check_bias_scale(op, t, x, w, channels)
    if len(t.scale) > 1 and t.axis != 0:
        state.odd_bias_axes[op.index] = channels
    limits = np.iinfo(np.int32)
    saturated = int(np.count_nonzero((data == limits.min) | (data == limits.max)))
    if saturated:
        state.saturated[op.index] = saturated
    state.tensors[t.index] = Tensor(t.name, t.shape, INT32, Quant(t.scale), data)
    return (t.index,)


def _check_bias_scale(op: RawOp, t: RawTensor, x: Tensor, w: Tensor, channels: int) -> None:
    given = np.broadcast_to(np.array(t.scale, np.float64), (channels,))
    expected = np.broadcast_to(quant_of(x).scale[0] * np.array(quant_of(w).scale, np.float64), (channels,))
    if not np.isfinite(given).all() or (given < 0).any():
        fail(op, "has a bias scale that is negative, infinite or NaN", HINT_INT8)
    error = np.abs(given - expected) / np.where(expected > 0, expected, 1)
    error[expected == 0] = 0
    worst = int(error.argmax())
    if error[worst] > BIAS_SCALE_TOLERANCE:
        fail(
            op,
            f"has bias scale {given[worst]:.6g} in channel {worst}, input scale times weight scale is {expected[worst]:.6g} "
            f"({100 * error[worst]:.3g} % off, the limit is {100 * BIAS_SCALE_TOLERANCE:.0f} %)",
            "convert the model again: its biases mean something else than the converter's specification says",
        )


# ---- attributes ------------------------------------------------------------------------------------------------------


def options(op: RawOp) -> RawOptions:
    if op.options is None:
        fail(op, "has no options")
    return op.options


def fused(op: RawOp) -> Activation:
    """The fused activation of an operator."""
    code = options(op).activation
    if code not in ACTIVATIONS:
        fail(op, f"has the fused activation {ACTIVATION_NAMES.get(code, code)}, which is not supported", "use RELU, RELU6 or RELU_N1_TO_1")
    return ACTIVATIONS[code]


def window(op: RawOp, x: Tensor, kernel: tuple[int, int]) -> tuple[Pads, tuple[int, int]]:
    """The explicit pads of a window and its outputs (P, Q)."""
    o = options(op)
    for what, pair in (("stride", o.stride), ("dilation", o.dilation), ("kernel", kernel)):
        if min(pair) < 1:
            fail(op, f"has {what} {pair}, 1 or more is expected")
    size = (x.shape[1], x.shape[2])
    pad = same_pads(size, kernel, o.stride, o.dilation) if o.same else (0, 0, 0, 0)
    p, q = window_outputs(size, kernel, o.stride, o.dilation, pad)
    if p < 1 or q < 1:
        fail(op, f"slides a kernel of {kernel} (dilation {o.dilation}) over an input of {size}, where it does not fit")
    return pad, (p, q)


def axis_of(op: RawOp, axis: int, rank: int) -> int:
    """An axis that may count from the end, as an index from 0."""
    if not -rank <= axis < rank:
        fail(op, f"names axis {axis} of a tensor with {rank} sizes")
    return axis % rank
