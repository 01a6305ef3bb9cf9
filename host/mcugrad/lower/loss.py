"""The end of the net: the head's accumulators, the loss, and what only evaluation runs."""

from __future__ import annotations

from mcugrad.autodiff.differentiate import LOSS_ERROR, Loss
from mcugrad.graph import Activation, Op
from mcugrad.lower.context import Facts, Lowering, clamp, const, make_value, scale, zero_point
from mcugrad.lower.forward import forward
from mcugrad.lower.layers import layer_facts, requants
from mcugrad.lower.program import Draft, Value
from mcugrad.lower.weights import read_layer
from mcugrad.plan import Region


def head_steps(low: Lowering, head: Op) -> tuple[Draft, list[Draft], Value]:
    """(forward step, eval steps, logits): the head hands int32 accumulators to the loss; eval requantizes them."""
    graph = low.train.graph
    y = graph.tensors[head.outputs[0]]
    logits = make_value(f"{head.name}.acc", Region.ARENA, "int32_t", y.size)
    last = low.emit("linear_fwd_s32", head.name, layer_facts(low, head) | {"y": logits})
    facts: Facts = {"n": 1, "o": y.size, "zy": zero_point(y), "x": logits, "y": low.tensor(head.outputs[0]), "rounding": graph.rounding}
    records = const(f"{head.name}.rq", "mg_requant", requants(low, head).tobytes())
    steps = [low.emit("requant_fwd_s8", head.name, facts | clamp(y, Activation.NONE) | {"rq": records})]
    if low.train.behind is not None:
        steps += forward(low, low.train.behind)
    return last, steps, logits


def loss_step(low: Lowering, logits: Value | None, common: Facts) -> Draft:
    """The step that turns logits, or the int8 output, into the first error."""
    graph = low.train.graph
    tensor = graph.tensors[low.train.loss_tensor]
    dy, ry = low.error(LOSS_ERROR, tensor)
    facts = common | {"dy": dy, "ry": ry}
    if low.train.loss is Loss.MSE:
        output = graph.tensors[graph.output]
        facts |= {"st": scale(output), "zt": zero_point(output)}
    if logits is None:
        facts |= {"n": tensor.size, "x": low.tensor(graph.output), "sx": scale(tensor), "zx": zero_point(tensor)}
        return low.emit("mse_s8", "output", facts)
    assert low.train.head is not None
    layer = read_layer(graph, low.train.head)
    scales = (layer.x_scale * layer.w_scale).astype("<f4")
    name = {Loss.XENT: "xent_s32", Loss.BCE: "bce_s32", Loss.MSE: "mse_s32", None: ""}[low.train.loss]
    facts |= {"c": scales.size, "x": logits, "scale": const(f"{low.train.head.name}.scale", "float", scales.tobytes())}
    return low.emit(name, low.train.head.name, facts)
