"""Backward steps: errors, and gradients fused with their update."""

from __future__ import annotations

import math

from mcugrad.autodiff.differentiate import MakeError, UpdateBias, UpdateWeights, needs_mask, passes_unchanged
from mcugrad.errors import ModelError
from mcugrad.graph import (
    Activation,
    Add,
    AvgPool,
    Concat,
    Conv2D,
    DwConv2D,
    Graph,
    Linear,
    MaxPool,
    Mean,
    MinMax,
    Mul,
    Op,
    Pad,
    Prelu,
    ResizeNearest,
    Slice,
    Softmax,
    Sub,
    Tensor,
    Transpose,
    Unary,
)
from mcugrad.lower import lut, quant
from mcugrad.lower.blocks import Block, merged, move_block
from mcugrad.lower.context import Facts, Lowering, const, make_value, map_size, scale, zero_point
from mcugrad.lower.forward import alpha_slopes, copy_step, operands, pool_facts, resize_facts
from mcugrad.lower.layers import layer_facts, stem, window
from mcugrad.lower.program import Draft
from mcugrad.lower.weights import bias_rate, fold, read_layer, weight_rate
from mcugrad.plan import Region

MOVED = 2.0**-12
"""What one unit of an accumulator is worth where an error is only moved, summed or selected (SPEC.md section 3.5)."""

POOLED = 2.0**-20
"""The same for an average, whose shares are fractions."""

SOFTMAX = 2.0**-16

MAX_SPREAD = 66_000
"""Products that an int32 accumulator can sum: 127 · 255 · 66,000 < 2^31."""


def backward(low: Lowering, step: MakeError | UpdateWeights | UpdateBias, common: Facts) -> Draft:
    """The record of one backward step."""
    graph = low.train.graph
    match step:
        case MakeError():
            return _make_error(low, step)
        case UpdateWeights(op=op):
            rate = const(f"{op.name}.w rate", "float", weight_rate(read_layer(graph, op)).astype("<f4").tobytes())
            facts = common | layer_facts(low, op) | _kept(low, op.inputs[0]) | _incoming(low, step.dy)
            facts |= {"rate": rate, "stream": step.layer}
            return low.emit(f"{stem(low, op)}_upd_{'q16' if low.options.ws == 2 else 'sr8'}", op.name, facts)
        case UpdateBias(op=op):
            layer = read_layer(graph, op)
            rate = const(f"{op.name}.b rate", "float", bias_rate(layer).astype("<f4").tobytes())
            positions = graph.tensors[op.outputs[0]].size // layer.b.size
            facts = common | layer_facts(low, op) | _incoming(low, step.dy) | {"rate": rate, "n": positions, "o": layer.b.size}
            return low.emit("bias_upd_s32", op.name, facts | {"af": facts["bias_af"]})


def save(low: Lowering, tensor: int) -> list[Draft]:
    """Forward steps that keep of a tensor what backward needs: its clamp mask, its trained channels."""
    graph, x = low.train.graph, low.train.graph.tensors[tensor]
    steps = []
    if tensor in low.saved.masks:
        bits = low.masks[tensor] = make_value(f"mask of {x.name}", Region.ARENA, "uint8_t", (x.size + 7) // 8)
        lo, hi = clamp_bounds(graph, tensor)
        steps.append(low.emit("mask_s8", x.name, {"n": x.size, "lo": lo, "hi": hi, "x": low.tensor(tensor), "bits": bits}))
    if tensor in low.saved.slices:
        channels, c = low.saved.slices[tensor], x.shape[-1]
        rows = x.size // c
        kept = low.slices[tensor] = make_value(f"{channels} channels of {x.name}", Region.ARENA, "int8_t", rows * channels)
        block = merged(Block((rows, channels), 0, (c, 1), 0, (channels, 1)), x.name)
        steps.append(copy_step(low, x.name, block, low.tensor(tensor), kept))
    return steps


def _kept(low: Lowering, tensor: int) -> Facts:
    """The input of an update: what was kept of it, or the tensor itself."""
    return {"x": low.slices[tensor], "i": low.saved.slices[tensor]} if tensor in low.slices else {}


def _incoming(low: Lowering, number: int) -> Facts:
    data, exponent = low.errors[number]
    return {"dy": data, "ry": exponent}


def _make_error(low: Lowering, step: MakeError) -> Draft:
    graph = low.train.graph
    tensor = graph.tensors[step.tensor]
    op = step.op
    if op is not None and isinstance(op.kind, Concat | Slice | Transpose | Pad):
        return _move_error(low, op, step)
    dx, rx = low.error(step.out, tensor)
    facts = _incoming(low, step.dy) | {"dx": dx, "rx": rx} | _skip(low, step) | _mask(low, step)
    if op is None:
        return low.emit("add_bwd_x_s8", tensor.name, facts | _scales(MOVED) | {"n": tensor.size, "sign": 1})
    name, special = _error_facts(low, op, step.k, tensor)
    return low.emit(name, op.name, facts | special)


def _move_error(low: Lowering, op: Op, step: MakeError) -> Draft:
    """A copy: the error keeps its exponent."""
    graph = low.train.graph
    tensor = graph.tensors[step.tensor]
    dy, exponent = low.errors[step.dy]
    dx, _ = low.error(step.out, tensor)
    low.errors[step.out] = dx, exponent
    return copy_step(low, op.name, move_block(graph, op, step.k).backward(tensor.size), dy, dx)


def _error_facts(low: Lowering, op: Op, k: int, tensor: Tensor) -> tuple[str, Facts]:
    """(step kind, its own fields) for the error of input ``k``."""
    graph = low.train.graph
    x, y = graph.read(op, k), graph.tensors[op.outputs[0]]
    match op.kind:
        case Conv2D() | DwConv2D() | Linear():
            facts = layer_facts(low, op)
            channels = facts["ot" if isinstance(op.kind, DwConv2D) else "it"]
            assert isinstance(channels, int)
            m, unit = fold(read_layer(graph, op), channels)
            return f"{stem(low, op)}_bwd_x_s8", facts | _scales(unit) | {"fold": const(f"{op.name}.fold", "uint8_t", m.tobytes())}
        case AvgPool():
            return "avgpool_bwd_x_s8", _scales(POOLED) | pool_facts(op.kind, x, y)
        case Mean():
            h, w, c = map_size(x)
            whole: Facts = {"h": h, "w": w, "c": c, "p": 1, "q": 1}
            return "avgpool_bwd_x_s8", _scales(POOLED) | whole | window((h, w), (1, 1), (0, 0, 0, 0))
        case MaxPool():
            return "maxpool_bwd_x_s8", _scales(MOVED) | pool_facts(op.kind, x, y) | {"x": low.tensor(op.inputs[0])}
        case Unary():
            assert x.quant is not None and y.quant is not None
            slopes, unit = lut.slopes(op.kind, x.quant, y.quant)
            table = const(f"{op.name}.slope", "int16_t", slopes.astype("<i2").tobytes())
            return "lut_bwd_x_s8", _scales(unit) | {"n": x.size, "x": low.tensor(op.inputs[0]), "slope": table}
        case Prelu():
            slope, one, unit = alpha_slopes(graph.tensors[op.inputs[1]])
            facts = _scales(unit) | {"p": x.size // slope.size, "c": slope.size, "one": one, "zx": zero_point(x)}
            return "prelu_bwd_x_s8", facts | {"x": low.tensor(op.inputs[0]), "slope": const(f"{op.name}.slope", "int16_t", slope.tobytes())}
        case Softmax():
            c = x.shape[-1]
            return "softmax_bwd_x_s8", _scales(op.kind.beta * SOFTMAX) | {"n": x.size // c, "c": c, "y": low.tensor(op.outputs[0])}
        case ResizeNearest():
            return "resize_bwd_x_s8", _scales(MOVED) | resize_facts(op, op.kind, x, y)
        case Add() | Sub() | Mul() | MinMax():
            return _pair_error(low, op, k, tensor)
        case _:
            raise ModelError(f"op {op.name} has no gradient", f"train only layers behind {op.name}")


def _pair_error(low: Lowering, op: Op, k: int, tensor: Tensor) -> tuple[str, Facts]:
    graph = low.train.graph
    if isinstance(op.kind, Sub) and graph.read(op, k).size == graph.tensors[op.outputs[0]].size:
        assert not passes_unchanged(graph, op, k)
        return "add_bwd_x_s8", _scales(MOVED) | {"n": tensor.size, "sign": -1}
    pair = operands(graph, op)
    if pair is None:
        raise ModelError(f"op {op.name} spreads both of its inputs, which has no gradient", f"train only layers behind {op.name}")
    where = pair.spread
    facts: Facts = {"p": where.p, "c": where.c, "bp": where.bp, "bc": where.bc}
    count = graph.tensors[op.outputs[0]].size // graph.read(op, k).size
    if isinstance(op.kind, Add | Sub):
        up = max(0, min(12, 21 - math.ceil(math.log2(count))))
        sign = -1 if isinstance(op.kind, Sub) and k == 1 else 1
        return "sum_bwd_x_s8", facts | _scales(2.0**-up) | {"up": up, "sign": sign}
    other = graph.read(op, 1 - k)
    if isinstance(op.kind, Mul):
        if k == pair.a or count == 1:
            return "mul_bwd_a_s8", facts | _scales(scale(other)) | {"b": low.tensor(op.inputs[1 - k]), "zb": zero_point(other)}
        if count > MAX_SPREAD:
            raise ModelError(f"op {op.name} spreads one value over {count}, {MAX_SPREAD} is the limit of its gradient", "pool first")
        return "mul_bwd_b_s8", facts | _scales(scale(other)) | {"a": low.tensor(op.inputs[1 - k]), "za": zero_point(other)}
    assert isinstance(op.kind, MinMax)
    if count > 1:
        raise ModelError(f"op {op.name} has no gradient for an input that is spread", f"train only layers behind {op.name}")
    ends: Facts = {"a": low.tensor(op.inputs[pair.a]), "b": low.tensor(op.inputs[pair.b])}
    return "minmax_bwd_x_s8", facts | ends | _scales(MOVED) | {"max": int(op.kind.largest), "second": int(k == pair.b)}


def _scales(unit: float) -> Facts:
    """Multipliers that take an accumulator of this unit to the error, and a skip error to the accumulator."""
    mult, shift = _mantissa(unit)
    skip_mult, skip_shift = _mantissa(1.0 / unit)
    return {"mult": mult, "shift": shift, "skip_mult": skip_mult, "skip_shift": skip_shift}


def _mantissa(real: float) -> tuple[int, int]:
    """real = mult · 2^-shift, 2^30 ≤ mult < 2^31."""
    fraction, exponent = math.frexp(real)
    mult = math.floor(fraction * 2**31 + 0.5)
    return (2**30, 30 - exponent) if mult == 2**31 else (mult, 31 - exponent)


def _skip(low: Lowering, step: MakeError) -> Facts:
    if step.skip is None:
        return {"has_skip": 0}
    data, exponent = low.errors[step.skip]
    return {"has_skip": 1, "skip": data, "rskip": exponent}


def _mask(low: Lowering, step: MakeError) -> Facts:
    """The clamp mask of the tensor itself: the error passes where lo < x < hi."""
    if not step.masked:
        return {"has_mask": 0, "has_bits": 0, "lo": -129, "hi": 128}
    if step.tensor in low.masks:
        return {"has_mask": 0, "has_bits": 1, "lo": -129, "hi": 128, "bits": low.masks[step.tensor]}
    lo, hi = clamp_bounds(low.train.graph, step.tensor)
    return {"has_mask": 1, "has_bits": 0, "lo": lo, "hi": hi, "x": low.tensor(step.tensor)}


def clamp_bounds(graph: Graph, tensor: int) -> tuple[int, int]:
    """(lo, hi): the error of an activation passes where lo < x < hi. An upper bound that int8 does not reach cuts nothing."""
    producer = next(op for op in graph.ops if op.outputs[0] == tensor)
    assert needs_mask(graph, producer) and isinstance(producer.kind, Conv2D | DwConv2D | Linear | Add | Sub | Mul | AvgPool | MaxPool)
    return activation_bounds(producer.kind.activation, graph.tensors[tensor])


def activation_bounds(activation: Activation, y: Tensor) -> tuple[int, int]:
    """``clamp_bounds`` of a tensor that ``activation`` made."""
    lo, hi = quant.activation_range(activation, scale(y), zero_point(y))
    top = {Activation.RELU6: 6.0, Activation.RELU_N1_1: 1.0}.get(activation, math.inf)
    return lo, hi if top < scale(y) * (127.5 - zero_point(y)) else 128
