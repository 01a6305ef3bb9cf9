"""Windows and reductions without weights: MaxPool, AveragePool, the global pools, ReduceMean, Resize."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from mcugrad.graph.types import Activation, AvgPool, MaxPool, Mean, Pad, Quant, ResizeNearest
from mcugrad.importer.onnx.build import State, from_image
from mcugrad.importer.onnx.file import MAX_ELEMENTS, Node, short
from mcugrad.importer.onnx.layers import Pair, ceil_pads, fits, pair, window
from mcugrad.importer.onnx.values import Act, Pending, inverse, transposed
from mcugrad.importer.windows import Pads, window_outputs
from mcugrad.lower.quant import resize_rows


def maxpool(state: State, node: Node) -> None:
    if len([o for o in node.outputs if o]) > 1:
        node.fail("also returns indices, which is not supported", "use only its first output")
    state.values[node.outputs[0]] = maxpool_of(state, node, state.act(node, 0))


def global_maxpool(state: State, node: Node) -> None:
    x = state.act(node, 0)
    tensor, (_, h, w, c) = state.image(node, x)
    kind = MaxPool((h, w), (1, 1), (0, 0, 0, 0), Activation.NONE)
    y = state.op(node, kind, (tensor,), (1, 1, 1, c), _quant(state, tensor), node.outputs[0])
    shape, order = from_image((1, 1, 1, c), len(x.shape))
    state.values[node.outputs[0]] = replace(x, tensor=y, shape=shape, order=order)


def maxpool_of(state: State, node: Node, x: Act) -> Act:
    """It chooses values, so its result has its input's quantization and may be codes as well as real numbers."""
    tensor, size, kernel, stride, pad = _window(state, node, x)
    p, q = window_outputs(size, kernel, stride, (1, 1), pad)
    fits(node, size, kernel, p, q)
    stored = (1, p, q, state.tensors[tensor].shape[3])
    y = state.op(node, MaxPool(kernel, stride, pad, Activation.NONE), (tensor,), stored, _quant(state, tensor), node.outputs[0])
    shape, order = from_image(stored, len(x.shape))
    return replace(x, tensor=y, shape=shape, order=order)


def avgpool(state: State, node: Node) -> None:
    state.values[node.outputs[0]] = avgpool_of(state, node, state.real(node, 0))


def avgpool_of(state: State, node: Node, x: Act) -> Act:
    """An average keeps its input's quantization; a QuantizeLinear with another one behind it is a second step."""
    tensor, size, kernel, stride, pad = _window(state, node, x)
    if any(pad) and node.integer("count_include_pad", 0):
        if node.integer("ceil_mode", 0):
            node.fail("counts its padding and rounds its size up, which is not supported", "export with ceil_mode = 0")
        tensor, size, pad = _padded(state, node, tensor, pad), (size[0] + pad[0] + pad[2], size[1] + pad[1] + pad[3]), (0, 0, 0, 0)
    p, q = window_outputs(size, kernel, stride, (1, 1), pad)
    fits(node, size, kernel, p, q)
    stored = (1, p, q, state.tensors[tensor].shape[3])
    y = state.op(node, AvgPool(kernel, stride, pad, Activation.NONE), (tensor,), stored, _quant(state, tensor), node.outputs[0])
    shape, order = from_image(stored, len(x.shape))
    return replace(x, tensor=y, shape=shape, order=order)


def _window(state: State, node: Node, x: Act) -> tuple[int, Pair, Pair, Pair, Pads]:
    """(tensor, (H,W), kernel, stride, pads) of a pool."""
    tensor, (_, h, w, _) = state.image(node, x)
    rank = len(x.shape)
    if "kernel_shape" not in node.attributes:
        node.fail("has no kernel_shape")
    kernel = pair(node, "kernel_shape", (1, 1), rank)
    stride, dilation, pad = window(node, (h, w), kernel, rank)
    if dilation != (1, 1):
        node.fail(f"has dilation {dilation}, pools without it are supported", "export without dilation")
    if pad[0] >= kernel[0] or pad[1] >= kernel[1] or pad[2] >= kernel[0] or pad[3] >= kernel[1]:
        node.fail(f"has pads {pad} as large as its kernel {kernel}")
    if node.integer("ceil_mode", 0):
        pad = ceil_pads(node, (h, w), kernel, stride, pad)
    return tensor, (h, w), kernel, stride, pad


def _padded(state: State, node: Node, tensor: int, pad: Pads) -> int:
    _, h, w, c = state.tensors[tensor].shape
    quant = _quant(state, tensor)
    kind = Pad((0, pad[0], pad[1], 0), (0, pad[2], pad[3], 0), 0 if quant is None else quant.zero_point)
    return state.op(node, kind, (tensor,), (1, h + pad[0] + pad[2], w + pad[1] + pad[3], c), quant, f"{node.outputs[0]}/padded")


def _quant(state: State, tensor: int) -> Quant | None:
    return state.tensors[tensor].quant


# ---- means -----------------------------------------------------------------------------------------------------------


def global_avgpool(state: State, node: Node) -> None:
    state.values[node.outputs[0]] = global_avgpool_of(state, node, state.real(node, 0))


def global_avgpool_of(state: State, node: Node, x: Act) -> Pending:
    tensor, (_, _, _, c) = state.image(node, x)
    shape, order = from_image((1, 1, 1, c), len(x.shape))
    return Pending(node, Mean(True), (tensor,), (1, 1, 1, c), shape, order)


def reduce_mean(state: State, node: Node) -> None:
    """Over two axes of an image; which of the others is called channels does not matter."""
    x = state.real(node, 0)
    rank = len(x.shape)
    axes = state.integers(node, 1, "axes") if node.has(1) else node.integers("axes", tuple(range(rank)))
    reduced = sorted({a % rank for a in axes if -rank <= a < rank})
    if rank not in (3, 4) or 0 in reduced or len(reduced) != rank - 2 or len(reduced) != len(axes):
        node.fail(f"averages {x.shape} over the axes {axes}: only height and width of (1,C,H,W) is supported", "use GlobalAveragePool")
    channels = next(k for k in range(1, rank) if k not in reduced)
    perm = (0, channels, *reduced)
    v = global_avgpool_of(state, node, transposed(x, perm))
    back = transposed(Act(0, v.shape, v.order), inverse(perm))
    shape = back.shape if node.integer("keepdims", 1) else (1, v.shape[1])
    state.values[node.outputs[0]] = replace(v, shape=shape, order=back.order)


# ---- resize ----------------------------------------------------------------------------------------------------------


def resize(state: State, node: Node) -> None:
    x = state.act(node, 0)
    if node.text("mode", "nearest") != "nearest":
        node.fail(f"interpolates with mode {short(node.text('mode', ''))}, nearest is supported", "export with mode nearest")
    if len(x.shape) != 4 or "axes" in node.attributes or node.text("keep_aspect_ratio_policy", "stretch") != "stretch":
        node.fail(f"resizes shape {x.shape} in a way that is not supported: (1,C,H,W) with one size or scale per axis is expected")
    tensor, (_, h, w, c) = state.image(node, x)
    sizes, scales = _sizes(state, node, x)
    if sizes[:2] != x.shape[:2] or min(sizes) < 1 or math.prod(sizes) > MAX_ELEMENTS:
        node.fail(f"resizes {x.shape} to {sizes}: batch and channels must stay, at most {MAX_ELEMENTS:,} elements are possible")
    p, q = sizes[2:]
    wanted = [_onnx_map(node, n, m, s) for n, m, s in ((h, p, scales[0]), (w, q, scales[1]))]
    for align, half in ((False, False), (False, True), (True, False)):
        ours = [resize_rows(n, m, align_corners=align, half_pixel_centers=half) for n, m in ((h, p), (w, q))]
        if all(map(np.array_equal, ours, wanted)):
            y = state.op(node, ResizeNearest(align, half), (tensor,), (1, p, q, c), state.tensors[tensor].quant, node.outputs[0])
            shape, order = from_image((1, p, q, c), 4)
            state.values[node.outputs[0]] = replace(x, tensor=y, shape=shape, order=order)
            return
    how = f"{node.text('coordinate_transformation_mode', 'half_pixel')}, {node.text('nearest_mode', 'round_prefer_floor')}"
    node.fail(f"resizes {h} x {w} to {p} x {q} by the rule {short(how)}, which is not supported", "use asymmetric with floor")


def _sizes(state: State, node: Node, x: Act) -> tuple[tuple[int, ...], tuple[float, float]]:
    """The sizes of the result, and the scales of height and width."""
    if node.has(3):
        sizes = state.integers(node, 3, "sizes")
        if len(sizes) != 4:
            node.fail(f"has sizes {sizes}, four are expected")
        return sizes, (sizes[2] / x.shape[2], sizes[3] / x.shape[3])
    factors = state.numbers(node, state.value(node, 2), "scales").reshape(-1)
    if factors.size != 4 or (factors <= 0).any() or (factors > MAX_ELEMENTS).any():
        node.fail(f"has {factors.size} scales, four above 0 are expected")
    return tuple(math.floor(n * float(f)) for n, f in zip(x.shape, factors, strict=True)), (float(factors[2]), float(factors[3]))


def _onnx_map(node: Node, n: int, m: int, scale: float) -> npt.NDArray[np.int64]:
    """For each of m outputs the input of n that ONNX takes."""
    i = np.arange(m, dtype=np.float64)
    at: npt.NDArray[np.float64]
    mode = node.text("coordinate_transformation_mode", "half_pixel")
    if mode == "align_corners":
        at = i * (n - 1) / (m - 1) if m > 1 else np.zeros(m)
    elif mode == "half_pixel" or (mode == "pytorch_half_pixel" and m > 1):
        at = (i + 0.5) / scale - 0.5
    elif mode == "pytorch_half_pixel":
        at = np.zeros(m)
    elif mode == "asymmetric":
        at = i / scale
    else:
        node.fail(f"has coordinate_transformation_mode {short(mode)}, which is not supported", "use asymmetric with nearest_mode floor")
    rounded = {
        "round_prefer_floor": np.ceil(at - 0.5),
        "round_prefer_ceil": np.floor(at + 0.5),
        "floor": np.floor(at),
        "ceil": np.ceil(at),
    }.get(node.text("nearest_mode", "round_prefer_floor"))
    if rounded is None:
        node.fail("has an unknown nearest_mode")
    found: npt.NDArray[np.int64] = np.clip(rounded, 0, n - 1).astype(np.int64)
    return found
