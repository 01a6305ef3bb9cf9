"""Nodes with weights: Conv, Gemm, MatMul, and BatchNormalization, which becomes a part of the layer before it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from mcugrad.graph.types import Activation, Conv2D, DwConv2D, Linear
from mcugrad.importer.onnx.build import HINT_QDQ, State, from_image
from mcugrad.importer.onnx.file import MAX_ELEMENTS, Node, short
from mcugrad.importer.onnx.quantization import symmetric, with_bias
from mcugrad.importer.onnx.values import Act, Const, Layer, Pending, QConst, Value
from mcugrad.importer.windows import Pads, extent, same_pads, window_outputs

Pair = tuple[int, int]


def conv(state: State, node: Node) -> None:
    state.values[node.outputs[0]] = conv_of(state, node, state.real(node, 0), state.value(node, 1), _optional(state, node, 2))


def gemm(state: State, node: Node) -> None:
    if node.integer("transA", 0):
        node.fail("transposes its input (transA), which is not supported", "export x · W")
    x = state.real(node, 0)
    if len(x.shape) != 2:
        node.fail(f"reads shape {x.shape}, (N, I) is expected")
    layer = linear_layer(state, node, state.value(node, 1), transposed=bool(node.integer("transB", 0)))
    factor, beta = node.number("alpha", 1.0), node.number("beta", 1.0)
    if factor != 1.0:
        layer = layer.scaled(np.full(layer.channels, factor))
    bias = _optional(state, node, 2)
    if bias is not None and beta != 0:
        if beta != 1.0:
            bias = Const((state.numbers(node, bias, "biases") * beta).astype(np.float32))
        layer = with_bias(state, node, layer, x, bias, layer.channels)
    state.values[node.outputs[0]] = linear_of(state, node, x, layer)


def matmul(state: State, node: Node) -> None:
    w = state.value(node, 1)
    if isinstance(w, Act | Pending) or isinstance(state.value(node, 0), Const | QConst):
        node.fail("multiplies two activations, or has its weights on the left: only x · W with constant W is supported", "see mcugrad ops")
    state.values[node.outputs[0]] = linear_of(state, node, state.real(node, 0), linear_layer(state, node, w, transposed=False))


def batch_norm(state: State, node: Node) -> None:
    """y = factor · x + shift per channel: into the layer before it, or a depthwise 1x1 convolution of its own."""
    if node.integer("training_mode", 0) or len([o for o in node.outputs if o]) > 1:
        node.fail("is in training mode", "export with model.eval()")
    gamma, beta, mean, variance = (state.numbers(node, state.value(node, k), "parameters").reshape(-1) for k in (1, 2, 3, 4))
    if not gamma.size == beta.size == mean.size == variance.size:
        node.fail(f"has parameters of {gamma.size}, {beta.size}, {mean.size} and {variance.size} channels")
    deviation = variance + node.number("epsilon", 1e-5)
    if (deviation <= 0).any():
        node.fail("has a variance that is not positive")
    factor = gamma / np.sqrt(deviation)
    shift = beta - mean * factor
    v = taken_in(state, node, 0)
    if v is not None and v.layer is not None and v.layer.channels == factor.size:
        state.values[node.outputs[0]] = replace(v, layer=v.layer.scaled(factor).shifted(shift))
        return
    x = state.real(node, 0)
    w, scale = np.sign(factor) * 127, np.abs(factor) / 127
    codes = QConst(w.astype(np.int8).reshape(-1, 1, 1, 1), scale.astype(np.float32), np.zeros(scale.shape, np.int64), 0)
    weights: Value = codes if state.quantized else Const(factor.astype(np.float32).reshape(-1, 1, 1, 1))
    if len(x.shape) < 2 or x.shape[1] != factor.size:
        node.fail(f"has {factor.size} channels for an input of shape {x.shape}")
    as_image = replace(x, shape=(*x.shape, 1, 1) if len(x.shape) == 2 else x.shape)
    plain = Node(node.index, node.name, node.op, node.domain, node.inputs, node.outputs, {"group": factor.size})
    y = conv_of(state, plain, as_image, weights, Const(shift.astype(np.float32)))
    state.values[node.outputs[0]] = replace(y, shape=x.shape)


def taken_in(state: State, node: Node, k: int) -> Pending | None:
    """Input k, where it is a result that only this node reads and nothing bounds: then this node may become part of it."""
    v = state.value(node, k)
    if isinstance(v, Pending) and state.uses[node.inputs[k]] == 1 and not (np.isfinite(v.lo) or np.isfinite(v.hi)):
        return v
    return None


def _optional(state: State, node: Node, k: int) -> Const | QConst | None:
    if not node.has(k):
        return None
    v = state.value(node, k)
    if not isinstance(v, Const | QConst):
        node.fail(f"has the bias '{short(node.inputs[k])}', which is computed by the model", "export with a constant bias")
    return v


# ---- convolution -----------------------------------------------------------------------------------------------------


def conv_of(state: State, node: Node, x: Act, weights: Value, bias: Const | QConst | None) -> Pending:
    """A convolution of x (1,C,H,W) or (1,C,L) with weights (O,C/g,R,S) or (O,C/g,S)."""
    rank = len(x.shape)
    tensor, (_, height, width, channels) = state.image(node, x)
    w, scale = weights_of(state, node, weights, 0)
    if w.ndim == 3 and rank == 3:
        w = w[:, :, None, :]
    if w.ndim != 4 or 0 in w.shape:
        node.fail(f"has weights of shape {w.shape} for an input of shape {x.shape}")
    outputs, per_group, r, s = (int(d) for d in w.shape)
    groups = node.integer("group", 1)
    if groups < 1 or outputs % groups or per_group * groups != channels:
        node.fail(f"has weights of shape {w.shape} in {groups} groups for {channels} input channels")
    stride, dilation, pad = window(node, (height, width), (r, s), rank)
    p, q = window_outputs((height, width), (r, s), stride, dilation, pad)
    fits(node, (height, width), (r, s), p, q)
    depthwise = groups == channels and groups > 1
    layer = Layer(_dw_layout(w) if depthwise else np.ascontiguousarray(w.transpose(0, 2, 3, 1)), 3 if depthwise else 0, scale)
    if bias is not None:
        layer = with_bias(state, node, layer, x, bias, outputs)
    kind: Conv2D | DwConv2D
    if depthwise:
        kind = DwConv2D(stride, dilation, pad, outputs // channels, Activation.NONE)
    else:
        kind = Conv2D(stride, dilation, pad, Activation.NONE, groups)
    shape, order = from_image((1, p, q, outputs), rank)
    return Pending(node, kind, (tensor,), (1, p, q, outputs), shape, order, layer)


def _dw_layout(w: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """(O,1,R,S) -> (1,R,S,O)"""
    return np.ascontiguousarray(w[:, 0].transpose(1, 2, 0)[None])


def weights_of(state: State, node: Node, v: Value, axis: int) -> tuple[npt.NDArray[Any], npt.NDArray[np.float64] | None]:
    """Weights in the layout of the file, int8 with their scales or float32 without; ``axis`` has the output channels."""
    if not isinstance(v, Const | QConst):
        node.fail("has weights that are computed by the model", "export with constant weights")
    if not state.quantized:
        return state.numbers(node, v, "weights").astype(np.float32), None
    if isinstance(v, Const):
        node.fail(f"has {v.array.dtype} weights without a scale, int8 behind DequantizeLinear is expected", HINT_QDQ)
    if v.scale.ndim and v.axis != axis:
        node.fail(f"has weights quantized along axis {v.axis}, it must be axis {axis}, the output channels", HINT_QDQ)
    return symmetric(state, node, v)


def window(node: Node, size: Pair, kernel: Pair, rank: int) -> tuple[Pair, Pair, Pads]:
    """(stride, dilation, explicit pads) of a window over (H,W); a window over (L,) is one over (1,L)."""
    given = pair(node, "kernel_shape", kernel, rank)
    if given != kernel:
        node.fail(f"has kernel_shape {given}, the weights say {kernel}")
    stride, dilation = pair(node, "strides", (1, 1), rank), pair(node, "dilations", (1, 1), rank)
    if min(*stride, *dilation, *kernel) < 1 or max(*stride, *dilation, *kernel) > MAX_ELEMENTS:
        node.fail(f"has kernel {kernel}, stride {stride}, dilation {dilation}: 1 or more is expected")
    return stride, dilation, _pads(node, size, kernel, stride, dilation, rank)


def _pads(node: Node, size: Pair, kernel: Pair, stride: Pair, dilation: Pair, rank: int) -> Pads:
    auto = node.text("auto_pad", "NOTSET")
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        top, left, bottom, right = same_pads(size, kernel, stride, dilation)
        return (top, left, bottom, right) if auto == "SAME_UPPER" else (bottom, right, top, left)
    if auto == "VALID":
        return (0, 0, 0, 0)
    if auto != "NOTSET":
        node.fail(f"has auto_pad {short(auto)}, which ONNX does not know")
    pads = node.integers("pads", (0,) * (2 * (rank - 2)))
    if len(pads) != 2 * (rank - 2) or min(pads) < 0 or max(pads) > MAX_ELEMENTS:
        node.fail(f"has pads {pads}, {2 * (rank - 2)} numbers of 0 or more are expected")
    return (pads[0], pads[1], pads[2], pads[3]) if rank == 4 else (0, pads[0], 0, pads[1])


def pair(node: Node, name: str, default: Pair, rank: int) -> Pair:
    values = node.integers(name, default if rank == 4 else default[1:])
    if len(values) != rank - 2:
        node.fail(f"has {name} {values}, {rank - 2} numbers are expected")
    return (values[0], values[1]) if rank == 4 else (1, values[0])


def fits(node: Node, size: Pair, kernel: Pair, p: int, q: int) -> None:
    if p < 1 or q < 1:
        node.fail(f"slides a kernel of {kernel} over an input of {size}, where it does not fit", "use larger inputs")
    if p * q > MAX_ELEMENTS:
        node.fail(f"makes {p} x {q} outputs, the limit is {MAX_ELEMENTS:,}", "use a smaller model")


def ceil_pads(node: Node, size: Pair, kernel: Pair, stride: Pair, pad: Pads) -> Pads:
    """The pads with which ceil_mode = 1 has as many outputs as the floor: more at the bottom and right, where a window begins inside."""
    after = []
    for n, k, s, before, end in zip(size, kernel, stride, pad[:2], pad[2:], strict=True):
        outputs = -(-(n + before + end - extent(k, 1)) // s) + 1
        if (outputs - 1) * s >= n + before:
            outputs -= 1
        after.append(max((outputs - 1) * s + k - n - before, end))
    return pad[0], pad[1], after[0], after[1]


# ---- fully connected -------------------------------------------------------------------------------------------------


def linear_layer(state: State, node: Node, v: Value, *, transposed: bool) -> Layer:
    """Weights (I,O), or (O,I) where ``transposed``, as a layer with w (O,I)."""
    w, scale = weights_of(state, node, v, 0 if transposed else 1)
    if w.ndim != 2 or 0 in w.shape:
        node.fail(f"has weights of shape {w.shape}, two sizes are expected")
    return Layer(np.ascontiguousarray(w if transposed else w.T), 0, scale)


def linear_of(state: State, node: Node, x: Act, layer: Layer) -> Pending:
    """x (…,I) times the weights. One row is read in whatever order it lies in memory: the weight columns follow it."""
    outputs, inputs = layer.w.shape
    if not x.shape or x.shape[-1] != inputs:
        node.fail(f"reads shape {x.shape}, the weights have {inputs} inputs")
    rows = x.size // inputs
    if rows == 1:
        tensor = x.tensor
        if x.order is not None:
            w = np.empty_like(layer.w)
            w[:, x.order] = layer.w
            layer = replace(layer, w=w)
    else:
        tensor = state.stored(node, x, (rows, inputs))
    return Pending(node, Linear(Activation.NONE), (tensor,), (rows, outputs), (*x.shape[:-1], outputs), None, layer)
