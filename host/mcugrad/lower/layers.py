"""The facts of a layer with weights: geometry, planes, bias and multipliers; what its forward, error and update steps have in common."""

from __future__ import annotations

import numpy as np

from mcugrad.autodiff.differentiate import is_vector_layer
from mcugrad.autodiff.rules import RULES
from mcugrad.autodiff.scheme import trained_channels
from mcugrad.graph import Conv2D, DwConv2D, Linear, Op, Tensor
from mcugrad.lower import quant
from mcugrad.lower.context import Facts, Lowering, const, make_value, map_size, scale, zero_point
from mcugrad.lower.program import TrainedLayer
from mcugrad.lower.weights import (
    WEIGHT_SUM_BITS,
    Layer,
    bias_bits,
    bias_bytes,
    bias_sum_bits,
    fold_constant_channels,
    read_layer,
    split_weights,
    trained_bytes,
)
from mcugrad.plan import Region


def stem(low: Lowering, op: Op) -> str:
    """First part of the names of a layer's step kinds."""
    return "linear" if is_vector_layer(low.train.graph, op) else RULES[type(op.kind)].step


def layer_facts(low: Lowering, op: Op) -> Facts:
    """The facts of a layer, made once."""
    if op.name not in low.layers:
        low.layers[op.name] = _make(low, op)
    return low.layers[op.name]


def requants(low: Lowering, op: Op) -> quant.Requants:
    """Multipliers of a layer's outputs, (O,)."""
    graph = low.train.graph
    weights, y = graph.tensors[op.inputs[1]], graph.tensors[op.outputs[0]]
    assert weights.quant is not None
    derive = quant.linear_requant if isinstance(op.kind, Linear) else quant.conv_requant
    outputs = read_layer(graph, op).b.size
    return np.broadcast_to(derive(scale(graph.tensors[op.inputs[0]]), weights.quant.scale, scale(y)), (outputs,)).copy()


def window(kernel: tuple[int, int], stride: tuple[int, int], pad: tuple[int, int, int, int]) -> Facts:
    """Fields of a sliding window."""
    return {"r": kernel[0], "s": kernel[1], "sh": stride[0], "sw": stride[1], "pt": pad[0], "pl": pad[1]}


def _make(low: Lowering, op: Op) -> Facts:
    graph = low.train.graph
    x, y = graph.read(op), graph.tensors[op.outputs[0]]
    layer = read_layer(graph, op)
    number = graph.layers.index(op)
    share = low.train.scheme.weights.get(number)
    channels = trained_channels(graph, op, share) if share is not None else 0
    facts = _geometry(low, op, x, y, layer) | {"x": low.tensor(op.inputs[0]), "zx": zero_point(x), "ws": low.options.ws}
    facts |= {"ot" if layer.depthwise else "it": channels, "rounding": graph.rounding}
    if op is not low.train.head:
        assert isinstance(op.kind, Conv2D | DwConv2D | Linear)
        clamp = quant.activation_range(op.kind.activation, scale(y), zero_point(y))
        layer, records = fold_constant_channels(layer, requants(low, op), graph.rounding, (zero_point(x), zero_point(y)), clamp)
        facts |= {"rq": const(f"{op.name}.rq", "mg_requant", records.tobytes())}
    return facts | _parameters(low, op, number, layer, channels)


def _parameters(low: Lowering, op: Op, number: int, layer: Layer, channels: int) -> Facts:
    """Weights and bias: what is trained in STATE, the rest in CONST."""
    scheme, ws = low.train.scheme, low.options.ws
    trained, frozen = split_weights(layer, channels)
    ctype = "int16_t" if ws == 2 else "int8_t"
    wt = make_value(f"{op.name}.w", Region.STATE, ctype, trained.size, trained_bytes(trained, ws)) if channels else None
    has_bias = number in scheme.biases and len(op.inputs) == 3
    bf, bias_af = _bias_bits(low, op, layer) if has_bias else (0, 0)
    region = Region.STATE if has_bias else Region.CONST
    bias = make_value(f"{op.name}.b", region, "int32_t", layer.b.size, bias_bytes(layer.b, bf))
    if number in scheme.weights or has_bias:
        low.trained.append(TrainedLayer(number, op.name, wt, channels, ws, bias if has_bias else None, bf))
        if layer.dead.any():
            low.notes.append(f"{op.name}: {layer.dead.sum()} of {layer.dead.size} channels have a weight scale below 1e-5 and stay frozen")
    af = WEIGHT_SUM_BITS if low.options.batch > 1 else 0
    return {"wt": wt, "wf": const(f"{op.name}.w", "int8_t", frozen.tobytes()), "b": bias, "bf": bf, "af": af, "bias_af": bias_af}


def _bias_bits(low: Lowering, op: Op, layer: Layer) -> tuple[int, int]:
    """(bf, af) of a trained bias."""
    if low.options.batch == 1:
        return bias_bits(layer.b), 0
    bf, af = bias_sum_bits(layer.b)
    if not af:
        low.notes.append(f"{op.name}: biases up to {np.abs(layer.b).max()} leave no room for a sum, they are updated with every sample")
    return bf, af


def _geometry(low: Lowering, op: Op, x: Tensor, y: Tensor, layer: Layer) -> Facts:
    o, r, s, i = layer.w.shape
    if is_vector_layer(low.train.graph, op):
        return {"n": x.size // i, "i": i, "o": o}
    assert isinstance(op.kind, Conv2D | DwConv2D)
    h, w, c = map_size(x)
    p, q, _ = map_size(y)
    kind = op.kind
    facts = window((r, s), kind.stride, kind.pad) | {"dh": kind.dilation[0], "dw": kind.dilation[1]}
    facts |= {"h": h, "w": w, "p": p, "q": q, "o": o}
    return facts | ({"i": c, "m": kind.multiplier} if isinstance(kind, DwConv2D) else {"i": i, "g": kind.groups})
