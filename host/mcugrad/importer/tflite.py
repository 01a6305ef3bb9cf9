"""RawModel -> Graph: what the numbers of a .tflite file mean, and whether they can be meant.

One function per operator, in the order of graph/types.py; each checks its operands and recomputes its output shape. The graph has the
file's operators one to one and, in the file's order, the tensors that they compute with; shapes, axes and paddings that the file keeps in
constant tensors become attributes. Nothing behind this module checks a shape, an index or a scale again.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from mcugrad.errors import ModelError
from mcugrad.graph.types import (
    Activation,
    Add,
    AvgPool,
    Conv2D,
    Dequantize,
    DwConv2D,
    Graph,
    Linear,
    Mean,
    Op,
    OpKind,
    Pad,
    Quant,
    Quantize,
    Reshape,
    Softmax,
    Tensor,
)
from mcugrad.importer import tflite_file
from mcugrad.importer.schemes import HINT_INT8, refuse_foreign, refuse_unsupported
from mcugrad.importer.tflite_file import ACTIVATION_NAMES, ACTIVATIONS, NO_TENSOR, RawModel, RawOp, RawOptions, RawTensor
from mcugrad.importer.windows import Pads, same_pads, window_outputs

MAX_TENSOR_ELEMENTS = 1 << 26
MAX_RANK = 8
BIAS_SCALE_TOLERANCE = 0.01
SOFTMAX_SCALE = 1 / 256
SOFTMAX_ZERO_POINT = -128
HINT_AGAIN = "the file contradicts itself, convert the model again"
HINT_BATCH_1 = "export the model with batch size 1"

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Found:
    """One operator understood: its kind, the tensors that its graph op reads, and the shape that its output must have."""

    kind: OpKind
    inputs: tuple[int, ...]
    shape: Shape


@dataclass(slots=True)
class _State:
    """What is known on the way through the operators. ``layer`` is the graph's name of the operator at hand, ``tensors`` are those of
    the graph so far by their index in the file, the rest is what the notes will say: channels by layer."""

    raw: RawModel
    layer: str = ""
    tensors: dict[int, Tensor] = field(default_factory=dict)
    pruned: dict[str, int] = field(default_factory=dict)
    saturated: dict[str, int] = field(default_factory=dict)
    odd_bias_axes: dict[str, int] = field(default_factory=dict)

    def notes(self) -> tuple[str, ...]:
        texts = (
            (self.pruned, "channels have weight scale 0 (pruned, they stay frozen)"),
            (self.saturated, "biases are saturated at the end of int32"),
            (self.odd_bias_axes, "bias scales name an axis that a bias does not have, read along its only axis"),
        )
        return tuple(f"{sum(by.values())} {text}: {', '.join(by)}" for by, text in texts if by)


def import_tflite(data: bytes, name: str) -> Graph:
    """The graph in the bytes of a .tflite file. ``name`` becomes the graph's. Raises ModelError."""
    raw = tflite_file.read(data)
    refuse_foreign(raw)
    refuse_unsupported(raw, _READERS)
    source, sink = _only(raw, raw.inputs, "inputs"), _only(raw, raw.outputs, "outputs")
    state = _State(raw)
    state.tensors[source] = _model_input(raw.tensors[source])
    ops: list[Op] = []
    counters: dict[str, int] = {}
    for raw_op in raw.ops:
        prefix, reader = _READERS[raw_op.code]
        counters[prefix] = counters.get(prefix, -1) + 1
        state.layer = f"{prefix}_{counters[prefix]}"
        found = reader(state, raw_op)
        ops.append(Op(state.layer, found.kind, found.inputs, (_produce(state, raw_op, found),)))
    if sink not in {op.outputs[0] for op in ops}:
        raise ModelError(f"the model's output, {raw.tensors[sink].where}, is computed by no operator", HINT_AGAIN)
    return _renumbered(Graph(name, (), tuple(ops), source, sink, zlib.crc32(data), state.notes()), state.tensors)


def _only(raw: RawModel, indices: tuple[int, ...], what: str) -> int:
    if len(indices) != 1:
        names = ", ".join(raw.tensors[i].name for i in indices) or "none"
        raise ModelError(f"the model has {len(indices)} {what} ({names}), mcugrad reads models with one", "export a model with one")
    return indices[0]


def _renumbered(graph: Graph, tensors: Mapping[int, Tensor]) -> Graph:
    """Number the tensors anew, in the file's order, without those that only the file needs."""
    kept = sorted(tensors)
    new = {old: i for i, old in enumerate(kept)}
    ops = tuple(replace(op, inputs=tuple(new[i] for i in op.inputs), outputs=tuple(new[i] for i in op.outputs)) for op in graph.ops)
    return replace(graph, tensors=tuple(tensors[i] for i in kept), ops=ops, input=new[graph.input], output=new[graph.output])


# ---- tensors ---------------------------------------------------------------------------------------------------------


def _fail(op: RawOp, text: str, hint: str = HINT_AGAIN) -> NoReturn:
    raise ModelError(f"{op.where} {text}", hint)


def _check_shape(t: RawTensor) -> None:
    if len(t.shape) > MAX_RANK or any(d < 1 for d in t.shape):
        raise ModelError(f"{t.where} has shape {t.shape}: every size must be 1 or more, at most {MAX_RANK} of them", HINT_AGAIN)
    if math.prod(t.shape) > MAX_TENSOR_ELEMENTS:
        raise ModelError(f"{t.where} has shape {t.shape}, the limit is {MAX_TENSOR_ELEMENTS:,} elements", "use a smaller model")


def _zero_point(t: RawTensor) -> int:
    """The zero point that all scales of a tensor share."""
    if len(t.zero_point) not in (0, 1, len(t.scale)):
        raise ModelError(f"{t.where} has {len(t.scale)} scales and {len(t.zero_point)} zero points", HINT_AGAIN)
    if len(set(t.zero_point)) > 1:
        raise ModelError(f"{t.where} has zero points that differ by channel", HINT_INT8)
    return t.zero_point[0] if t.zero_point else 0


def _activation_quant(t: RawTensor) -> Quant:
    if len(t.scale) != 1:
        raise ModelError(f"{t.where} has {len(t.scale)} scales, an activation needs exactly one", HINT_INT8)
    if not math.isfinite(t.scale[0]) or t.scale[0] <= 0:
        raise ModelError(f"{t.where} has scale {t.scale[0]:.6g}, it must be finite and above 0", "calibrate again with representative data")
    zero_point = _zero_point(t)
    if not -128 <= zero_point <= 127:
        raise ModelError(f"{t.where} has zero point {zero_point}, the range of int8 is -128 to 127", HINT_INT8)
    return Quant(t.scale, zero_point)


def _activation_tensor(t: RawTensor) -> Tensor:
    _check_shape(t)
    if not t.shape:
        raise ModelError(f"{t.where} is a scalar, an activation has at least one size", HINT_AGAIN)
    return Tensor(t.name, t.shape, np.dtype(np.int8), _activation_quant(t))


def _model_input(t: RawTensor) -> Tensor:
    """The model's input, int8 or, before a QUANTIZE, float32."""
    _check_shape(t)
    if t.data is not None:
        raise ModelError(f"the model's input, {t.where}, is a constant", HINT_AGAIN)
    if not t.shape or t.shape[0] != 1:
        raise ModelError(f"the model's input, {t.where}, has shape {t.shape}: the batch must be 1", HINT_BATCH_1)
    if t.type == "float32":
        return Tensor(t.name, t.shape, np.dtype(np.float32))
    if t.type != "int8":
        raise ModelError(f"the model's input, {t.where}, is {t.type}: int8 or float32 is expected", HINT_INT8)
    return _activation_tensor(t)


def _produce(state: _State, op: RawOp, found: _Found) -> int:
    """Check the output of an operator against what was computed, and add it to the graph."""
    if len(op.outputs) != 1:
        _fail(op, f"has {len(op.outputs)} outputs, one is expected")
    index = op.outputs[0]
    t = state.raw.tensors[index]
    if index in state.tensors or t.data is not None:
        _fail(op, f"writes {t.where}, which has a value already")
    if t.shape != found.shape:
        _fail(op, f"gives shape {found.shape}, but the file says {t.shape} for {t.where}")
    expected = "float32" if isinstance(found.kind, Dequantize) else "int8"
    if t.type != expected:
        _fail(op, f"writes {t.where} as {t.type}, {expected} is expected", HINT_INT8)
    state.tensors[index] = Tensor(t.name, t.shape, np.dtype(np.float32)) if expected == "float32" else _activation_tensor(t)
    return index


def _operand(state: _State, op: RawOp, slot: int) -> RawTensor:
    if slot >= len(op.inputs) or op.inputs[slot] == NO_TENSOR:
        _fail(op, f"has no input {slot}")
    return state.raw.tensors[op.inputs[slot]]


def _ready(state: _State, op: RawOp, slot: int) -> Tensor:
    """An activation that exists when the operator runs."""
    t = _operand(state, op, slot)
    if t.data is not None:
        _fail(op, f"reads the constant {t.where} where an activation is expected", "fold the constant into the layer before it")
    if t.index not in state.tensors:
        _fail(op, f"reads {t.where} before any operator has written it")
    return state.tensors[t.index]


def _quant(tensor: Tensor) -> Quant:
    assert tensor.quant is not None
    return tensor.quant


def _int8(state: _State, op: RawOp, slot: int) -> Tensor:
    x = _ready(state, op, slot)
    if x.dtype != np.int8:
        _fail(op, f"reads {x.name} as {x.dtype}, int8 is expected: only QUANTIZE may read a float input", HINT_INT8)
    return x


def _image(state: _State, op: RawOp) -> Tensor:
    """Input 0 as one int8 image (1, H, W, C)."""
    x = _int8(state, op, 0)
    if len(x.shape) != 4 or x.shape[0] != 1:
        _fail(op, f"reads {x.name} of shape {x.shape}, (1, H, W, C) is expected", HINT_BATCH_1)
    return x


def _constant(t: RawTensor, dtype: str) -> npt.NDArray[np.generic]:
    """The value of a constant tensor: a read-only array of the tensor's shape, aligned."""
    _check_shape(t)
    if t.type != dtype:
        raise ModelError(f"{t.where} is {t.type}, {dtype} is expected", HINT_INT8)
    if t.data is None:
        raise ModelError(f"{t.where} is not a constant", "export a model with fixed weights")
    native = np.dtype(dtype)
    expected = math.prod(t.shape) * native.itemsize
    if t.data.size != expected:
        raise ModelError(f"{t.where} of shape {t.shape} needs {expected:,} bytes, its buffer has {t.data.size:,}", HINT_AGAIN)
    return np.frombuffer(t.data.tobytes(), native.newbyteorder("<")).astype(native, copy=False).reshape(t.shape)


def _integers(state: _State, op: RawOp, slot: int) -> npt.NDArray[np.int64]:
    """A constant operand of int32 or int64."""
    t = _operand(state, op, slot)
    return _constant(t, "int64" if t.type == "int64" else "int32").astype(np.int64)


def _weights(state: _State, op: RawOp, axis: int) -> Tensor:
    """Input 1 as int8 weights, symmetric, with one scale or one per channel of ``axis``. Adds it to the graph."""
    t = _operand(state, op, 1)
    data = _constant(t, "int8")
    if data.ndim <= axis:
        _fail(op, f"has weights of shape {t.shape}, {axis + 1} sizes are expected")
    if _zero_point(t) != 0:
        _fail(op, f"has weights with zero point {_zero_point(t)}, int8 weights are symmetric (0)", HINT_INT8)
    if len(t.scale) not in (1, t.shape[axis]):
        _fail(op, f"has {len(t.scale)} weight scales for {t.shape[axis]} output channels", HINT_INT8)
    if len(t.scale) > 1 and t.axis != axis:
        _fail(op, f"has weights quantized along axis {t.axis}, it must be axis {axis}, the output channels", HINT_INT8)
    for channel, scale in enumerate(t.scale):
        if not math.isfinite(scale) or scale < 0:
            _fail(op, f"has weight scale {scale:.6g} in channel {channel}, it must be finite and not negative", HINT_INT8)
    pruned = sum(scale == 0 for scale in t.scale)
    if pruned:
        state.pruned[state.layer] = pruned
    w = Tensor(t.name, t.shape, np.dtype(np.int8), Quant(t.scale, 0, axis if len(t.scale) > 1 else 0), data)
    state.tensors[t.index] = w
    return w


def _bias(state: _State, op: RawOp, x: Tensor, w: Tensor, channels: int) -> tuple[int, ...]:
    """Input 2 as the int32 bias with scale s_x · s_w, or () where there is none. Adds it to the graph."""
    if len(op.inputs) > 3:
        _fail(op, f"has {len(op.inputs)} inputs, at most 3 are expected")
    if len(op.inputs) < 3 or op.inputs[2] == NO_TENSOR:
        return ()
    t = _operand(state, op, 2)
    data = _constant(t, "int32")
    if t.shape != (channels,):
        _fail(op, f"has a bias of shape {t.shape}, ({channels},) is expected")
    if _zero_point(t) != 0:
        _fail(op, f"has a bias with zero point {_zero_point(t)}, 0 is expected", HINT_INT8)
    if len(t.scale) not in (1, channels):
        _fail(op, f"has {len(t.scale)} bias scales for {channels} output channels", HINT_INT8)
    _check_bias_scale(op, t, x, w, channels)
    if len(t.scale) > 1 and t.axis != 0:
        state.odd_bias_axes[state.layer] = channels
    limits = np.iinfo(np.int32)
    saturated = int(np.count_nonzero((data == limits.min) | (data == limits.max)))
    if saturated:
        state.saturated[state.layer] = saturated
    state.tensors[t.index] = Tensor(t.name, t.shape, np.dtype(np.int32), Quant(t.scale), data)
    return (t.index,)


def _check_bias_scale(op: RawOp, t: RawTensor, x: Tensor, w: Tensor, channels: int) -> None:
    given = np.broadcast_to(np.array(t.scale, np.float64), (channels,))
    expected = np.broadcast_to(_quant(x).scale[0] * np.array(_quant(w).scale, np.float64), (channels,))
    if not np.isfinite(given).all() or (given < 0).any():
        _fail(op, "has a bias scale that is negative, infinite or NaN", HINT_INT8)
    error = np.abs(given - expected) / np.where(expected > 0, expected, 1)
    error[expected == 0] = 0
    worst = int(error.argmax())
    if error[worst] > BIAS_SCALE_TOLERANCE:
        _fail(
            op,
            f"has bias scale {given[worst]:.6g} in channel {worst}, input scale times weight scale is {expected[worst]:.6g} "
            f"({100 * error[worst]:.3g} % off, the limit is {100 * BIAS_SCALE_TOLERANCE:.0f} %)",
            "convert the model again: its biases mean something else than the converter's specification says",
        )


def _require_same_quant(state: _State, op: RawOp, x: Tensor) -> None:
    """The output of an operator that only moves or averages must have its input's quantization."""
    y = _activation_quant(state.raw.tensors[op.outputs[0]]) if op.outputs else _quant(x)
    if y.zero_point != _quant(x).zero_point or not math.isclose(y.scale[0], _quant(x).scale[0], rel_tol=1e-6):
        _fail(
            op,
            f"changes the quantization from ({_quant(x).scale[0]:.6g}, {_quant(x).zero_point}) to ({y.scale[0]:.6g}, {y.zero_point}), "
            "which this operator cannot",
        )


# ---- attributes ------------------------------------------------------------------------------------------------------


def _options(op: RawOp) -> RawOptions:
    if op.options is None:
        _fail(op, "has no options")
    return op.options


def _activation(op: RawOp, code: int) -> Activation:
    if code not in ACTIVATIONS:
        _fail(op, f"has the fused activation {ACTIVATION_NAMES.get(code, code)}, which is not supported", "use RELU, RELU6 or RELU_N1_TO_1")
    return ACTIVATIONS[code]


def _window(op: RawOp, x: Tensor, kernel: tuple[int, int], options: RawOptions) -> tuple[Pads, tuple[int, int]]:
    """The explicit pads of a window and its outputs (P, Q)."""
    for what, pair in (("stride", options.stride), ("dilation", options.dilation), ("kernel", kernel)):
        if min(pair) < 1:
            _fail(op, f"has {what} {pair}, 1 or more is expected")
    size = (x.shape[1], x.shape[2])
    pad = same_pads(size, kernel, options.stride, options.dilation) if options.same else (0, 0, 0, 0)
    p, q = window_outputs(size, kernel, options.stride, options.dilation, pad)
    if p < 1 or q < 1:
        _fail(op, f"slides a kernel of {kernel} (dilation {options.dilation}) over an input of {size}, where it does not fit")
    return pad, (p, q)


# ---- operators -------------------------------------------------------------------------------------------------------


def _conv(state: _State, op: RawOp) -> _Found:
    x, options = _image(state, op), _options(op)
    w = _weights(state, op, axis=0)
    if len(w.shape) != 4 or w.shape[3] != x.shape[3]:
        _fail(op, f"has weights of shape {w.shape} for an input of {x.shape[3]} channels (grouped convolution is not supported)")
    pad, (p, q) = _window(op, x, (w.shape[1], w.shape[2]), options)
    bias = _bias(state, op, x, w, w.shape[0])
    kind = Conv2D(options.stride, options.dilation, pad, _activation(op, options.activation))
    return _Found(kind, op.inputs[:2] + bias, (1, p, q, w.shape[0]))


def _dwconv(state: _State, op: RawOp) -> _Found:
    x, options = _image(state, op), _options(op)
    w = _weights(state, op, axis=3)
    if len(w.shape) != 4 or w.shape[0] != 1 or w.shape[3] % x.shape[3] != 0:
        _fail(op, f"has weights of shape {w.shape} for an input of {x.shape[3]} channels, (1, R, S, multiple of it) is expected")
    multiplier = w.shape[3] // x.shape[3]
    if options.multiplier not in (0, multiplier):
        _fail(op, f"has depth_multiplier {options.multiplier}, the shape of the weights says {multiplier}")
    pad, (p, q) = _window(op, x, (w.shape[1], w.shape[2]), options)
    bias = _bias(state, op, x, w, w.shape[3])
    kind = DwConv2D(options.stride, options.dilation, pad, multiplier, _activation(op, options.activation))
    return _Found(kind, op.inputs[:2] + bias, (1, p, q, w.shape[3]))


def _linear(state: _State, op: RawOp) -> _Found:
    x, options = _int8(state, op, 0), _options(op)
    if not options.plain_weights:
        _fail(op, "has shuffled weights, which are not supported", "export for the generic CPU")
    w = _weights(state, op, axis=0)
    if len(w.shape) != 2 or x.size % w.shape[1] != 0:
        _fail(op, f"has weights of shape {w.shape} for an input of shape {x.shape}")
    outputs, inputs = w.shape
    if options.keep_dims and x.shape[-1] != inputs:
        _fail(op, f"keeps the shape {x.shape} of its input, the last size must be {inputs}")
    bias = _bias(state, op, x, w, outputs)
    shape = (*x.shape[:-1], outputs) if options.keep_dims else (x.size // inputs, outputs)
    return _Found(Linear(_activation(op, options.activation)), op.inputs[:2] + bias, shape)


def _avgpool(state: _State, op: RawOp) -> _Found:
    x, options = _image(state, op), _options(op)
    _require_same_quant(state, op, x)
    pad, (p, q) = _window(op, x, options.kernel, options)
    return _Found(AvgPool(options.kernel, options.stride, pad, _activation(op, options.activation)), op.inputs[:1], (1, p, q, x.shape[3]))


def _mean(state: _State, op: RawOp) -> _Found:
    x = _image(state, op)
    axes = _integers(state, op, 1).reshape(-1).tolist()
    if {a + 4 if a < 0 else a for a in axes} != {1, 2}:
        _fail(op, f"averages over the axes {axes}, only (1, 2), height and width, is supported", "use GlobalAveragePooling2D")
    keep = _options(op).keep_dims
    channels = x.shape[3]
    return _Found(Mean(keep), op.inputs[:1], (1, 1, 1, channels) if keep else (1, channels))


def _add(state: _State, op: RawOp) -> _Found:
    a, b = _int8(state, op, 0), _int8(state, op, 1)
    if a.shape != b.shape:
        _fail(op, f"adds shapes {a.shape} and {b.shape}, only equal shapes are supported", "make both branches the same shape")
    return _Found(Add(_activation(op, _options(op).activation)), op.inputs[:2], a.shape)


def _softmax(state: _State, op: RawOp) -> _Found:
    x, beta = _int8(state, op, 0), _options(op).beta
    if not math.isfinite(beta) or beta <= 0:
        _fail(op, f"has beta {beta}, it must be finite and above 0")
    y = _activation_quant(_output(state, op))
    if y.scale[0] != SOFTMAX_SCALE or y.zero_point != SOFTMAX_ZERO_POINT:
        _fail(
            op,
            f"has output scale {y.scale[0]:.8g} and zero point {y.zero_point}, an int8 softmax has exactly 1/256 and -128",
            "convert the model again, or remove the softmax",
        )
    return _Found(Softmax(beta), op.inputs[:1], x.shape)


def _output(state: _State, op: RawOp) -> RawTensor:
    if not op.outputs:
        _fail(op, "has no output")
    return state.raw.tensors[op.outputs[0]]


def _pad(state: _State, op: RawOp) -> _Found:
    x = _image(state, op)
    _require_same_quant(state, op, x)
    pads = _integers(state, op, 1)
    if pads.shape != (4, 2) or (pads < 0).any() or pads[[0, 3]].any():
        _fail(op, f"pads {pads.tolist()}, only height and width of (1, H, W, C) can be padded", "pad height and width only")
    if op.code == "PADV2" or len(op.inputs) > 2:
        value = int(_constant(_operand(state, op, 2), "int8").reshape(-1)[0])
        if value != _quant(x).zero_point:
            _fail(op, f"pads with {value}, only the input's zero point {_quant(x).zero_point} (real 0) is supported", "pad with zeros")
    top, bottom, left, right = (int(v) for v in pads[1:3].reshape(-1))
    shape = (1, x.shape[1] + top + bottom, x.shape[2] + left + right, x.shape[3])
    return _Found(Pad((top, left, bottom, right)), op.inputs[:1], shape)


def _reshape(state: _State, op: RawOp) -> _Found:
    """RESHAPE, SQUEEZE, EXPAND_DIMS: the output's shape is the file's; it must hold the same elements."""
    x = _int8(state, op, 0)
    _require_same_quant(state, op, x)
    y = _output(state, op)
    if math.prod(y.shape) != x.size:
        _fail(op, f"turns shape {x.shape} into {y.shape}, the number of elements must stay the same")
    if op.code == "RESHAPE" and len(op.inputs) > 1:
        wanted = _integers(state, op, 1).reshape(-1).tolist()
        if len(wanted) != len(y.shape) or any(w not in (-1, d) for w, d in zip(wanted, y.shape, strict=True)):
            _fail(op, f"asks for shape {tuple(wanted)}, but the file says {y.shape} for {y.where}")
    return _Found(Reshape(), op.inputs[:1], y.shape)


def _quantize(state: _State, op: RawOp) -> _Found:
    x = _ready(state, op, 0)
    if x.dtype != np.float32:
        _fail(op, f"requantizes {x.name} from {x.dtype}, only float32 -> int8 at the model's input is supported", HINT_INT8)
    if state.layer != "quantize_0":
        _fail(op, "quantizes the model's input a second time", "use one QUANTIZE for all branches")
    return _Found(Quantize(), op.inputs[:1], x.shape)


def _dequantize(state: _State, op: RawOp) -> _Found:
    x = _int8(state, op, 0)
    if op.outputs != state.raw.outputs:
        _fail(op, "turns an inner tensor into float, only int8 -> float32 at the model's output is supported", HINT_INT8)
    return _Found(Dequantize(), op.inputs[:1], x.shape)


_Reader = Callable[[_State, RawOp], _Found]

_READERS: dict[str, tuple[str, _Reader]] = {
    "CONV_2D": ("conv", _conv),
    "DEPTHWISE_CONV_2D": ("dwconv", _dwconv),
    "FULLY_CONNECTED": ("linear", _linear),
    "AVERAGE_POOL_2D": ("avgpool", _avgpool),
    "MEAN": ("mean", _mean),
    "ADD": ("add", _add),
    "SOFTMAX": ("softmax", _softmax),
    "PAD": ("pad", _pad),
    "PADV2": ("pad", _pad),
    "RESHAPE": ("reshape", _reshape),
    "SQUEEZE": ("reshape", _reshape),
    "EXPAND_DIMS": ("reshape", _reshape),
    "QUANTIZE": ("quantize", _quantize),
    "DEQUANTIZE": ("dequantize", _dequantize),
}
"""Operator -> prefix of its graph op's name, and its reader."""
