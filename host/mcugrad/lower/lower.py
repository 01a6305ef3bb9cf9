"""Graph ops to step records. A record's fields are filled by name from the facts of its op: the names are those of ops.def."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from mcugrad.autodiff.differentiate import LOSS_ERROR, MakeError, TrainGraph, UpdateBias, UpdateWeights, is_vector_layer, needs_mask
from mcugrad.autodiff.rules import RULES
from mcugrad.autodiff.scheme import trained_channels
from mcugrad.errors import ModelError
from mcugrad.graph import Activation, Add, AvgPool, Conv2D, DwConv2D, Graph, Linear, Mean, Op, Softmax, Tensor
from mcugrad.lower import quant
from mcugrad.lower.exponents import initial_exponents
from mcugrad.lower.program import Draft, Program, Segments, TrainedLayer, Value
from mcugrad.lower.weights import (
    Layer,
    bias_bits,
    bias_bytes,
    bias_rate,
    fold,
    read_layer,
    split_weights,
    trained_bytes,
    weight_rate,
)
from mcugrad.plan import Region, opsdef
from mcugrad.plan.opsdef import TYPES

Facts = dict[str, float | Value | None]

WORD = 4
"""Alignment of every value: kernels may load int8 by the word."""

ERROR_UNIT = 2.0**-20
"""What one unit of an accumulator is worth where an error is only spread or summed (SPEC.md section 3.5)."""


@dataclass(frozen=True, slots=True)
class Options:
    """How weights are trained: ``ws`` = 2 for Q8.8 with rounding, 1 for int8 with stochastic rounding; ``seed`` of the generator."""

    ws: int = 2
    seed: int = 1


@dataclass(slots=True)
class _Lowering:
    train: TrainGraph
    options: Options
    exponents: Mapping[int, int]
    tensors: dict[int, Value] = field(default_factory=dict)
    errors: dict[int, tuple[Value, Value]] = field(default_factory=dict)
    layers: dict[str, Facts] = field(default_factory=dict)
    trained: list[TrainedLayer] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def emit(self, kind_name: str, label: str, facts: Mapping[str, float | Value | None]) -> Draft:
        """Fill a record of ``kind_name``. A reference whose count is 0 for these scalars is unused."""
        kind = opsdef.kinds()[kind_name]
        scalars = {s.name: facts[s.name] for s in kind.scalars}
        assert all(isinstance(v, int | float) for v in scalars.values())
        numbers: dict[str, float] = scalars  # type: ignore[assignment]
        refs: dict[str, Value | None] = {}
        for name, nbytes in kind.nbytes(numbers).items():
            value = facts.get(name) if nbytes else None
            assert nbytes == 0 or (isinstance(value, Value) and value.nbytes == nbytes), (
                f"{kind_name} {label}: {name} has not {nbytes} bytes"
            )
            refs[name] = value if isinstance(value, Value) else None
        return Draft(kind, label, numbers, refs)


def lower(train: TrainGraph, options: Options | None = None) -> Program:
    """Write the forward and the backward pass as step records.

    Raises ModelError for an op that has no step kind.
    """
    low = _Lowering(train, options or Options(), initial_exponents(train))
    graph = train.graph
    source, target = graph.tensors[graph.input], graph.tensors[graph.output]
    sample = _value("sample", Region.IO, "int8_t", source.size)
    args, result = _value("args", Region.IO, "mg_args"), _value("result", Region.IO, "mg_result")
    output = _value("output", Region.IO, "int8_t", target.size)
    rng = _value("rng", Region.STATE, "mg_rng", data=np.array([low.options.seed, 0], "<u4").tobytes())
    low.tensors = {graph.input: sample, graph.output: output}
    common: Facts = {"args": args, "result": result, "rng": rng, "unit": _value("unit", Region.ARENA, "float")}
    segments, logits = _lower_training(low, train.head, common) if train.head else ((_forward_steps(low), (), (), ()), None)
    return Program(
        segments=segments,
        sample=sample,
        args=args,
        result=result,
        output=output,
        rng=rng,
        classes=int(segments[2][0].scalars["c"]) if segments[2] else 0,
        model_hash=graph.model_hash,
        tensors=dict(low.tensors),
        logits=logits,
        trained=tuple(low.trained),
        step_macs=tuple(_macs(step) for segment in segments for step in segment),
        notes=(*graph.notes, *low.notes),
    )


def _forward_steps(low: _Lowering) -> tuple[Draft, ...]:
    """The forward steps of every op but the head and the softmax behind it."""
    return tuple(_forward(low, op) for op in low.train.graph.ops if op not in (low.train.head, low.train.softmax))


def _lower_training(low: _Lowering, head: Op, common: Facts) -> tuple[Segments, Value]:
    """The four segments, and the logits. The backward segment ends with the tick of the random generator."""
    forward = _forward_steps(low)
    last, eval_steps, logits = _lower_head(low, head)
    loss = _loss(low, head, logits, common)
    backward = tuple(_backward(low, step, common) for step in low.train.backward)
    return ((*forward, last), tuple(eval_steps), (loss,), (*backward, low.emit("tick", "rng", common))), logits


def _value(name: str, region: Region, ctype: str, count: int = 1, data: bytes | None = None) -> Value:
    size, align = TYPES[ctype]
    return Value(name, region, size * count, max(align, WORD), data)


def _const(name: str, ctype: str, data: bytes) -> Value:
    return _value(name, Region.CONST, ctype, len(data) // TYPES[ctype][0], data)


def _tensor(low: _Lowering, index: int) -> Value:
    if index not in low.tensors:
        tensor = low.train.graph.tensors[index]
        low.tensors[index] = _value(tensor.name, Region.ARENA, "int8_t", tensor.size)
    return low.tensors[index]


def _zero_point(tensor: Tensor) -> int:
    assert tensor.quant is not None
    return tensor.quant.zero_point


def _scale(tensor: Tensor) -> float:
    assert tensor.quant is not None
    return tensor.quant.scale[0]


def _map_size(tensor: Tensor) -> tuple[int, int, int]:
    """(H, W, C) of an activation (1, H, W, C)."""
    h, w, c = tensor.shape[-3:]
    return h, w, c


def _clamp(tensor: Tensor, activation: Activation) -> Facts:
    lo, hi = quant.activation_range(activation, _scale(tensor), _zero_point(tensor))
    return {"lo": lo, "hi": hi}


# ---- forward ----------------------------------------------------------------------------------------------------------


def _forward(low: _Lowering, op: Op) -> Draft:
    graph = low.train.graph
    x, y = graph.first_input(op), graph.tensors[op.outputs[0]]
    kind = op.kind
    match kind:
        case Conv2D() | DwConv2D() | Linear():
            facts = _layer_facts(low, op) | {"y": _tensor(low, op.outputs[0]), "zy": _zero_point(y)} | _clamp(y, kind.activation)
            return low.emit(f"{_stem(low, op)}_fwd_s8", op.name, facts)
        case AvgPool():
            facts = (
                _pool_facts(kind, x, y) | {"x": _tensor(low, op.inputs[0]), "y": _tensor(low, op.outputs[0])} | _clamp(y, kind.activation)
            )
            return low.emit("avgpool_fwd_s8", op.name, facts)
        case Mean():
            h, w, c = _map_size(x)
            p = quant.mean_params(_scale(x), _zero_point(x), _scale(y), h * w)
            facts = {"h": h, "w": w, "c": c, "mult": p.mult, "shift": p.shift, "bias": p.bias, "zy": _zero_point(y), "lo": -128, "hi": 127}
            return low.emit("mean_fwd_s8", op.name, facts | {"x": _tensor(low, op.inputs[0]), "y": _tensor(low, op.outputs[0])})
        case Add():
            return low.emit("add_fwd_s8", op.name, _add_facts(low, op, kind))
        case Softmax():
            return low.emit("softmax_fwd_s8", op.name, _softmax_facts(low, op, kind))
        case _:
            raise ModelError(f"op {op.name} has no kernel", "see `mcugrad inspect` for the ops of the model")


def _stem(low: _Lowering, op: Op) -> str:
    return "linear" if is_vector_layer(low.train.graph, op) else RULES[type(op.kind)].step


def _pool_facts(kind: AvgPool, x: Tensor, y: Tensor) -> Facts:
    h, w, c = _map_size(x)
    p, q, _ = _map_size(y)
    return {"h": h, "w": w, "c": c, "p": p, "q": q} | _window(kind.kernel, kind.stride, kind.pad)


def _window(kernel: tuple[int, int], stride: tuple[int, int], pad: tuple[int, int, int, int]) -> Facts:
    return {"r": kernel[0], "s": kernel[1], "sh": stride[0], "sw": stride[1], "pt": pad[0], "pl": pad[1]}


def _add_facts(low: _Lowering, op: Op, kind: Add) -> Facts:
    a, b, y = (low.train.graph.tensors[i] for i in (*op.inputs, *op.outputs))
    p = quant.add_params(_scale(a), _scale(b), _scale(y))
    facts: Facts = {"n": y.size, "am": p.am, "ash": p.ash, "bm": p.bm, "bsh": p.bsh, "ym": p.ym, "ysh": p.ysh}
    facts |= {"za": _zero_point(a), "zb": _zero_point(b), "zy": _zero_point(y)} | _clamp(y, kind.activation)
    return facts | {"a": _tensor(low, op.inputs[0]), "b": _tensor(low, op.inputs[1]), "y": _tensor(low, op.outputs[0])}


def _softmax_facts(low: _Lowering, op: Op, kind: Softmax) -> Facts:
    x = low.train.graph.first_input(op)
    p = quant.softmax_params(kind.beta, _scale(x))
    c = x.shape[-1]
    facts: Facts = {"mult": p.mult, "shift": p.shift, "diff_min": p.diff_min, "n": x.size // c, "c": c}
    return facts | {"x": _tensor(low, op.inputs[0]), "y": _tensor(low, op.outputs[0])}


def _layer_facts(low: _Lowering, op: Op) -> Facts:
    """Geometry, weights, bias and multipliers of a layer; what forward, error and update have in common. Made once per layer."""
    if op.name not in low.layers:
        low.layers[op.name] = _make_layer_facts(low, op)
    return low.layers[op.name]


def _make_layer_facts(low: _Lowering, op: Op) -> Facts:
    graph = low.train.graph
    x, y = graph.first_input(op), graph.tensors[op.outputs[0]]
    layer = read_layer(graph, op)
    number = graph.layers.index(op)
    share = low.train.scheme.weights.get(number)
    channels = trained_channels(graph, op, share) if share is not None else 0
    facts = _geometry(low, op, x, y, layer) | {"x": _tensor(low, op.inputs[0]), "zx": _zero_point(x), "ws": low.options.ws}
    facts |= {"ot": channels} if layer.depthwise else {"it": channels}
    trained, frozen = split_weights(layer, channels)
    ctype = "int16_t" if low.options.ws == 2 else "int8_t"
    wt = _value(f"{op.name}.w", Region.STATE, ctype, trained.size, trained_bytes(trained, low.options.ws)) if channels else None
    facts |= {"wt": wt, "wf": _const(f"{op.name}.w", "int8_t", frozen.tobytes())}
    has_bias = number in low.train.scheme.biases and len(op.inputs) == 3
    bf = bias_bits(layer.b) if has_bias else 0
    region = Region.STATE if has_bias else Region.CONST
    bias = _value(f"{op.name}.b", region, "int32_t", layer.b.size, bias_bytes(layer.b, bf))
    facts |= {"b": bias, "bf": bf}
    if _scale(y) and op is not low.train.head:
        facts |= {"rq": _requants(low, op, layer)}
    if number in low.train.scheme.layers:
        low.trained.append(TrainedLayer(number, op.name, wt, channels, low.options.ws, bias if has_bias else None, bf))
        _note_dead_channels(low, op, layer)
    return facts


def _note_dead_channels(low: _Lowering, op: Op, layer: Layer) -> None:
    dead = int(layer.dead.sum())
    if dead:
        low.notes.append(f"{op.name}: {dead} of {layer.dead.size} channels have a weight scale below 1e-5 and stay frozen")


def _requants(low: _Lowering, op: Op, layer: Layer) -> Value:
    graph = low.train.graph
    weights, y = graph.tensors[op.inputs[1]], graph.tensors[op.outputs[0]]
    assert weights.quant is not None
    derive = quant.linear_requant if isinstance(op.kind, Linear) else quant.conv_requant
    records = derive(layer.x_scale, weights.quant.scale, _scale(y))
    return _const(f"{op.name}.rq", "mg_requant", np.broadcast_to(records, (layer.b.size,)).tobytes())


def _geometry(low: _Lowering, op: Op, x: Tensor, y: Tensor, layer: Layer) -> Facts:
    o, r, s, i = layer.w.shape
    if is_vector_layer(low.train.graph, op):
        return {"n": x.size // i, "i": i, "o": o}
    assert isinstance(op.kind, Conv2D | DwConv2D)
    h, w, c = _map_size(x)
    p, q, _ = _map_size(y)
    kind = op.kind
    facts = _window((r, s), kind.stride, kind.pad) | {"dh": kind.dilation[0], "dw": kind.dilation[1]}
    facts |= {"h": h, "w": w, "i": c, "p": p, "q": q, "o": o}
    return facts | ({"m": kind.multiplier} if isinstance(kind, DwConv2D) else {})


# ---- head and loss ----------------------------------------------------------------------------------------------------


def _lower_head(low: _Lowering, head: Op) -> tuple[Draft, list[Draft], Value]:
    """(forward step, eval steps, logits): the head hands int32 accumulators to the loss; eval requantizes them."""
    graph = low.train.graph
    y = graph.tensors[head.outputs[0]]
    logits = _value(f"{head.name}.acc", Region.ARENA, "int32_t", y.size)
    forward = low.emit("linear_fwd_s32", head.name, _layer_facts(low, head) | {"y": logits})
    facts: Facts = {"n": 1, "o": y.size, "zy": _zero_point(y), "x": logits, "y": _tensor(low, head.outputs[0])}
    facts |= _clamp(y, Activation.NONE) | {"rq": _requants(low, head, read_layer(graph, head))}
    steps = [low.emit("requant_fwd_s8", head.name, facts)]
    if low.train.softmax is not None:
        steps.append(_forward(low, low.train.softmax))
    return forward, steps, logits


def _loss(low: _Lowering, head: Op, logits: Value, common: Facts) -> Draft:
    layer = read_layer(low.train.graph, head)
    scale = (layer.x_scale * layer.w_scale).astype("<f4")
    dy = _error(low, LOSS_ERROR, low.train.graph.tensors[head.outputs[0]])
    facts = common | {
        "c": scale.size,
        "x": logits,
        "scale": _const(f"{head.name}.scale", "float", scale.tobytes()),
        "dy": dy[0],
        "ry": dy[1],
    }
    return low.emit("xent_s32", head.name, facts)


# ---- backward ---------------------------------------------------------------------------------------------------------


def _error(low: _Lowering, number: int, tensor: Tensor) -> tuple[Value, Value]:
    """The int8 error tensor of that number and its exponent."""
    if number not in low.errors:
        data = _value(f"d({tensor.name})", Region.ARENA, "int8_t", tensor.size)
        r = low.exponents[number] & 0xFF
        low.errors[number] = data, _value(f"exponent of d({tensor.name})", Region.STATE, "mg_exponent", data=bytes((r, r, 0, 0)))
    return low.errors[number]


def _backward(low: _Lowering, step: MakeError | UpdateWeights | UpdateBias, common: Facts) -> Draft:
    match step:
        case MakeError():
            return _make_error(low, step)
        case UpdateWeights(op=op):
            rate = _const(f"{op.name}.w rate", "float", weight_rate(read_layer(low.train.graph, op)).astype("<f4").tobytes())
            facts = common | _layer_facts(low, op) | _incoming(low, step.dy) | {"rate": rate, "stream": step.layer}
            suffix = "q16" if low.options.ws == 2 else "sr8"
            return low.emit(f"{_stem(low, op)}_upd_{suffix}", op.name, facts)
        case UpdateBias(op=op):
            layer = read_layer(low.train.graph, op)
            rate = _const(f"{op.name}.b rate", "float", bias_rate(layer).astype("<f4").tobytes())
            positions = low.train.graph.tensors[op.outputs[0]].size // layer.b.size
            facts = common | _layer_facts(low, op) | _incoming(low, step.dy) | {"rate": rate, "n": positions, "o": layer.b.size}
            return low.emit("bias_upd_s32", op.name, facts)


def _incoming(low: _Lowering, number: int) -> Facts:
    data, exponent = low.errors[number]
    return {"dy": data, "ry": exponent}


def _make_error(low: _Lowering, step: MakeError) -> Draft:
    graph = low.train.graph
    tensor = graph.tensors[step.tensor]
    dx, rx = _error(low, step.out, tensor)
    facts = _incoming(low, step.dy) | {"dx": dx, "rx": rx} | _skip(low, step) | _mask(low, step)
    op = step.op
    if op is None:
        return low.emit("add_bwd_x_s8", tensor.name, facts | _scales(ERROR_UNIT) | {"n": tensor.size})
    if isinstance(op.kind, AvgPool | Mean):
        spread = _spread(op.kind, graph.first_input(op), graph.tensors[op.outputs[0]])
        return low.emit("avgpool_bwd_x_s8", op.name, facts | _scales(ERROR_UNIT) | spread)
    layer_facts = _layer_facts(low, op)
    channels = layer_facts["ot" if isinstance(op.kind, DwConv2D) else "it"]
    assert isinstance(channels, int)
    m, unit = fold(read_layer(graph, op), channels)
    facts = layer_facts | facts | _scales(unit) | {"fold": _const(f"{op.name}.fold", "uint8_t", m.tobytes())}
    return low.emit(f"{_stem(low, op)}_bwd_x_s8", op.name, facts)


def _spread(kind: AvgPool | Mean, x: Tensor, y: Tensor) -> Facts:
    if isinstance(kind, AvgPool):
        return _pool_facts(kind, x, y)
    h, w, c = _map_size(x)
    return {"h": h, "w": w, "c": c, "p": 1, "q": 1} | _window((h, w), (1, 1), (0, 0, 0, 0))


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


def _skip(low: _Lowering, step: MakeError) -> Facts:
    if step.skip is None:
        return {"has_skip": 0}
    data, exponent = low.errors[step.skip]
    return {"has_skip": 1, "skip": data, "rskip": exponent}


def _mask(low: _Lowering, step: MakeError) -> Facts:
    """The clamp mask of the tensor itself: the error passes where lo < x < hi."""
    if not step.masked:
        return {"has_mask": 0, "lo": -129, "hi": 128}
    lo, hi = clamp_bounds(low.train.graph, step.tensor)
    return {"has_mask": 1, "lo": lo, "hi": hi, "x": _tensor(low, step.tensor)}


def clamp_bounds(graph: Graph, tensor: int) -> tuple[int, int]:
    """(lo, hi): the error of an activation passes where lo < x < hi. An upper bound that int8 does not reach cuts nothing."""
    producer = next(op for op in graph.ops if op.outputs[0] == tensor)
    assert needs_mask(graph, producer) and isinstance(producer.kind, Conv2D | DwConv2D | Linear | Add | AvgPool)
    activation, y = producer.kind.activation, graph.tensors[tensor]
    lo, hi = quant.activation_range(activation, _scale(y), _zero_point(y))
    top = {Activation.RELU6: 6.0, Activation.RELU_N1_1: 1.0}.get(activation, math.inf)
    return lo, hi if top < _scale(y) * (127.5 - _zero_point(y)) else 128


# ---- cost -------------------------------------------------------------------------------------------------------------


def _macs(step: Draft) -> int:
    """Multiply-accumulates of a step; 0 for what only moves or sums."""
    s = {k: int(v) for k, v in step.scalars.items()}
    stem, _, what = step.kind.name.partition("_")
    trained = what.startswith("upd")
    if stem == "conv2d":
        return s["p"] * s["q"] * s["o"] * s["r"] * s["s"] * (s["it"] if trained else s["i"])
    if stem == "dwconv2d":
        return s["p"] * s["q"] * s["r"] * s["s"] * (s["ot"] if trained else s["o"])
    if stem == "linear":
        return s["n"] * s["o"] * (s["it"] if trained else s["i"])
    return 0
