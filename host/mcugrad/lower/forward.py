"""Forward steps of every op."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

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
from mcugrad.lower.blocks import Block, Spread, move_block, spread, spread_block
from mcugrad.lower.context import Facts, Lowering, clamp, const, make_value, map_size, scale, zero_point
from mcugrad.lower.layers import layer_facts, stem, window
from mcugrad.lower.program import Draft, Value
from mcugrad.plan import Region


def forward(low: Lowering, op: Op) -> list[Draft]:
    """The steps of one op: one, except for a Concat and for operands that must be spread first."""
    graph = low.train.graph
    x, y = graph.read(op), graph.tensors[op.outputs[0]]
    ends: Facts = {"x": low.tensor(op.inputs[0]), "y": low.tensor(op.outputs[0])}
    match op.kind:
        case Conv2D() | DwConv2D() | Linear():
            facts = layer_facts(low, op) | {"y": low.tensor(op.outputs[0]), "zy": zero_point(y)} | clamp(y, op.kind.activation)
            return [low.emit(f"{stem(low, op)}_fwd_s8", op.name, facts)]
        case AvgPool() | MaxPool():
            name = "avgpool" if isinstance(op.kind, AvgPool) else "maxpool"
            return [low.emit(f"{name}_fwd_s8", op.name, pool_facts(op.kind, x, y) | ends | clamp(y, op.kind.activation))]
        case Mean():
            return [low.emit("mean_fwd_s8", op.name, _mean_facts(graph, x, y) | ends)]
        case Add() | Sub() | Mul() | MinMax():
            return _pair(low, op)
        case Unary():
            assert x.quant is not None and y.quant is not None
            table = const(f"{op.name}.table", "int8_t", lut.table(op.kind, x.quant, y.quant).tobytes())
            return [low.emit("lut_fwd_s8", op.name, ends | {"n": y.size, "table": table})]
        case Prelu():
            return [low.emit("prelu_fwd_s8", op.name, ends | _prelu_facts(low, op, x, y))]
        case Softmax():
            return [low.emit("softmax_fwd_s8", op.name, ends | _softmax_facts(op.kind, x))]
        case Concat() | Slice() | Transpose() | Pad():
            return [copy_step(low, op.name, move_block(graph, op, k), low.tensor(i), ends["y"]) for k, i in enumerate(op.inputs)]
        case ResizeNearest():
            return [low.emit("resize_fwd_s8", op.name, ends | resize_facts(op, op.kind, x, y))]
        case _:
            raise ModelError(f"op {op.name} has no kernel", "see `mcugrad ops`")


def copy_step(low: Lowering, name: str, block: Block, x: object, y: object) -> Draft:
    """A strided copy from value x to value y."""
    assert isinstance(x, Value) and isinstance(y, Value)
    facts: Facts = {"x": x, "y": y, "xn": x.nbytes, "yn": y.nbytes, "xo": block.x_offset, "yo": block.y_offset}
    for k in range(4):
        facts |= {f"d{k}": block.dims[k], f"x{k}": block.x_strides[k], f"y{k}": block.y_strides[k]}
    return low.emit("copy_s8", name, facts | {"has_fill": int(block.fill is not None), "fill": block.fill or 0})


def pool_facts(kind: AvgPool | MaxPool, x: Tensor, y: Tensor) -> Facts:
    h, w, c = map_size(x)
    p, q, _ = map_size(y)
    return {"h": h, "w": w, "c": c, "p": p, "q": q} | window(kind.kernel, kind.stride, kind.pad)


def resize_facts(op: Op, kind: ResizeNearest, x: Tensor, y: Tensor) -> Facts:
    h, w, c = map_size(x)
    p, q, _ = map_size(y)
    flags = {"align_corners": kind.align_corners, "half_pixel_centers": kind.half_pixel_centers}
    tables = (quant.resize_rows(h, p, **flags), quant.resize_rows(w, q, **flags))
    rows, cols = (
        const(f"{op.name}.{name}", "uint16_t", t.astype("<u2").tobytes()) for name, t in zip(("rows", "cols"), tables, strict=True)
    )
    return {"h": h, "w": w, "c": c, "p": p, "q": q, "rows": rows, "cols": cols}


def _mean_facts(graph: Graph, x: Tensor, y: Tensor) -> Facts:
    h, w, c = map_size(x)
    params = quant.mean_params(scale(x), zero_point(x), scale(y), h * w)
    facts: Facts = {"h": h, "w": w, "c": c, "mult": params.mult, "shift": params.shift, "bias": params.bias}
    return facts | {"rounding": graph.rounding, "zy": zero_point(y)} | clamp(y, Activation.NONE)


def _prelu_facts(low: Lowering, op: Op, x: Tensor, y: Tensor) -> Facts:
    alpha = low.train.graph.tensors[op.inputs[1]]
    params = quant.prelu_params(scale(x), scale(alpha), scale(y))
    facts: Facts = {"pm": params.pm, "psh": params.psh, "nm": params.nm, "nsh": params.nsh, "rounding": low.train.graph.rounding}
    facts |= {"p": x.size // alpha.size, "c": alpha.size, "alpha": low.tensor(op.inputs[1])}
    return facts | {"zx": zero_point(x), "za": zero_point(alpha), "zy": zero_point(y)}


def _softmax_facts(kind: Softmax, x: Tensor) -> Facts:
    params = quant.softmax_params(kind.beta, scale(x))
    c = x.shape[-1]
    return {"mult": params.mult, "shift": params.shift, "diff_min": params.diff_min, "n": x.size // c, "c": c}


# ---- two operands -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Operands:
    """Which input is the large one (a), and how the other (b) spreads over it. ``a`` and ``b`` are input numbers."""

    a: int
    b: int
    spread: Spread


def operands(graph: Graph, op: Op) -> Operands | None:
    """None where neither input has the output's shape, or one spreads in more than rows and columns."""
    y = graph.tensors[op.outputs[0]].shape
    for a, b in ((0, 1), (1, 0)):
        if graph.read(op, a).size == graph.tensors[op.outputs[0]].size:
            found = spread(graph.read(op, b).shape, y)
            if found is not None:
                return Operands(a, b, found)
    return None


def _pair(low: Lowering, op: Op) -> list[Draft]:
    graph = low.train.graph
    pair = operands(graph, op)
    values = [low.tensor(i) for i in op.inputs]
    steps: list[Draft] = []
    if pair is None:
        y = graph.tensors[op.outputs[0]]
        for k in (0, 1):
            if graph.read(op, k).size != y.size:
                wide = make_value(f"{op.name}.spread{k}", Region.ARENA, "int8_t", y.size)
                steps.append(copy_step(low, op.name, spread_block(graph.read(op, k).shape, y.shape, op.name), values[k], wide))
                values[k] = wide
        pair = Operands(0, 1, Spread(1, y.size, 1, 1))
    where = pair.spread
    facts: Facts = {"p": where.p, "c": where.c, "bp": where.bp, "bc": where.bc, "rounding": graph.rounding}
    facts |= {"a": values[pair.a], "b": values[pair.b], "y": low.tensor(op.outputs[0])}
    return [*steps, low.emit(_PAIR_STEPS[type(op.kind)], op.name, facts | _pair_facts(graph, op, pair))]


_PAIR_STEPS: dict[type, str] = {Add: "add_fwd_s8", Sub: "add_fwd_s8", Mul: "mul_fwd_s8", MinMax: "minmax_fwd_s8"}


def _pair_facts(graph: Graph, op: Op, pair: Operands) -> Facts:
    a, b, y = graph.read(op, pair.a), graph.read(op, pair.b), graph.tensors[op.outputs[0]]
    if isinstance(op.kind, MinMax):
        return {"max": int(op.kind.largest)}
    assert isinstance(op.kind, Add | Sub | Mul)
    facts: Facts = {"za": zero_point(a), "zb": zero_point(b), "zy": zero_point(y)} | clamp(y, op.kind.activation)
    if isinstance(op.kind, Mul):
        mult, shift = quant.mul_params(scale(a), scale(b), scale(y))
        return facts | {"mult": mult, "shift": shift}
    params = quant.add_params(scale(a), scale(b), scale(y))
    signs = (1, -1) if isinstance(op.kind, Sub) else (1, 1)
    facts |= {"am": params.am, "ash": params.ash, "bm": params.bm, "bsh": params.bsh, "ym": params.ym, "ysh": params.ysh}
    return facts | {"asign": signs[pair.a], "bsign": signs[pair.b]}


def alpha_slopes(alpha: Tensor) -> tuple[np.ndarray[tuple[int], np.dtype[np.int16]], int, float]:
    """(slope of each channel, slope of positive inputs, unit) of a Prelu, as int16 with the largest at 2^14."""
    assert alpha.data is not None
    real = scale(alpha) * (np.asarray(alpha.data, np.float64).reshape(-1) - zero_point(alpha))
    unit = max(1.0, float(np.abs(real).max())) / 2**14
    return np.rint(real / unit).astype("<i2"), round(1.0 / unit), unit
