"""One pass that leaves only what kernels compute: reshapes become aliases, pads go into the convolution, the float border to the host."""

from __future__ import annotations

from dataclasses import replace

from mcugrad.errors import ModelError
from mcugrad.graph.types import Conv2D, Dequantize, DwConv2D, Graph, Op, OpKind, Pad, Quantize, Reshape


def normalize(graph: Graph) -> Graph:
    """The same function of int8 input to int8 output, without Reshape, Pad, Quantize and Dequantize.

    Raises ModelError for a Pad that no convolution can take in, or a Quantize or Dequantize that is not at the border.
    """
    alias = dict(enumerate(range(len(graph.tensors))))
    shapes = {i: t.shape for i, t in enumerate(graph.tensors)}
    pads: dict[int, tuple[int, int, int, int]] = {}
    consumers = _consumers(graph)
    ops: list[Op] = []
    for op in graph.ops:
        x = op.inputs[0]
        if isinstance(op.kind, Reshape):
            alias[op.outputs[0]] = alias[x]
        elif isinstance(op.kind, Quantize):
            if x != graph.input:
                raise ModelError(f"op {op.name} quantizes in the middle of the graph", "only a QUANTIZE of the model's input is supported")
        elif isinstance(op.kind, Dequantize):
            if op.outputs[0] != graph.output:
                raise ModelError(
                    f"op {op.name} dequantizes in the middle of the graph", "only a DEQUANTIZE of the model's output is supported"
                )
            alias[op.outputs[0]] = alias[x]
        elif isinstance(op.kind, Pad):
            _check_pad(graph, op, consumers[op.outputs[0]])
            alias[op.outputs[0]] = alias[x]
            shapes[op.outputs[0]] = shapes[x]
            pads[op.outputs[0]] = op.kind.pad
        else:
            reads = op.reads if shapes[x] == graph.tensors[alias[x]].shape else shapes[x]
            ops.append(replace(op, kind=_padded(op, pads), inputs=tuple(alias[i] for i in op.inputs), reads=reads))
    source = graph.input
    for op in graph.ops:
        if isinstance(op.kind, Quantize) and op.inputs[0] == graph.input:
            source = op.outputs[0]
    return replace(graph, ops=tuple(ops), input=source, output=alias[graph.output])


def _consumers(graph: Graph) -> dict[int, list[Op]]:
    found: dict[int, list[Op]] = {i: [] for i in range(len(graph.tensors))}
    for op in graph.ops:
        for i in op.inputs:
            found[i].append(op)
    return found


def _check_pad(graph: Graph, op: Op, consumers: list[Op]) -> None:
    for user in consumers:
        if not isinstance(user.kind, Conv2D | DwConv2D):
            raise ModelError(f"op {op.name} pads the input of {user.name}", "only a PAD in front of a convolution is supported")
    if op.outputs[0] == graph.output:
        raise ModelError(f"op {op.name} pads the output of the model", "remove it")


def _padded(op: Op, pads: dict[int, tuple[int, int, int, int]]) -> OpKind:
    """The kind of ``op`` with the Pad before it taken in."""
    if op.inputs[0] not in pads or not isinstance(op.kind, Conv2D | DwConv2D):
        return op.kind
    a, b = pads[op.inputs[0]], op.kind.pad
    return replace(op.kind, pad=(a[0] + b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3]))
