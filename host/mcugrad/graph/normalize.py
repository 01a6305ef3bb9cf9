"""One pass that leaves only what kernels compute: reshapes become aliases, pads go into the convolution, the float border to the host."""

from __future__ import annotations

from dataclasses import replace

from mcugrad.errors import ModelError
from mcugrad.graph.types import Conv2D, Dequantize, DwConv2D, Graph, Op, OpKind, Pad, Quantize, Reshape

Border = tuple[int, int, int, int]


def normalize(graph: Graph) -> Graph:
    """The same function of int8 inputs to int8 outputs, without Reshape, Quantize, Dequantize and the Pads that a convolution can do.

    Raises ModelError for a Quantize or Dequantize that is not at the border.
    """
    alias = list(range(len(graph.tensors)))
    shapes = [t.shape for t in graph.tensors]
    pads: dict[int, Border] = {}
    inputs = {i: i for i in graph.inputs}
    ops: list[Op] = []
    for op in graph.ops:
        x, y = op.inputs[0], op.outputs[0]
        border = _foldable(graph, op)
        if isinstance(op.kind, Quantize):
            _require_border(op, x in graph.inputs, "QUANTIZE", "input")
            inputs[x] = y
        elif isinstance(op.kind, Dequantize):
            _require_border(op, y in graph.outputs, "DEQUANTIZE", "output")
            alias[y] = alias[x]
        elif isinstance(op.kind, Reshape):
            alias[y] = alias[x]
        elif border is not None:
            alias[y], shapes[y], pads[y] = alias[x], shapes[x], border
        else:
            ops.append(_renamed(graph, op, alias, shapes, pads))
    sources = tuple(inputs[i] for i in graph.inputs)
    return replace(graph, ops=tuple(ops), inputs=sources, outputs=tuple(alias[i] for i in graph.outputs))


def _require_border(op: Op, at_border: bool, name: str, side: str) -> None:
    if not at_border:
        raise ModelError(
            f"op {op.name} is a {name} with a float tensor inside the graph", f"only a {name} of the model's {side} is supported"
        )


def _renamed(graph: Graph, op: Op, alias: list[int], shapes: list[tuple[int, ...]], pads: dict[int, Border]) -> Op:
    """The op on what its inputs are aliases of, in the shape in which it reads each."""
    earlier = op.reads or (None,) * len(op.inputs)
    reads = tuple(r if shapes[i] == graph.tensors[alias[i]].shape else shapes[i] for i, r in zip(op.inputs, earlier, strict=True))
    inputs = tuple(alias[i] for i in op.inputs)
    return replace(op, kind=_padded(op, pads), inputs=inputs, reads=reads if any(reads) else ())


def _foldable(graph: Graph, op: Op) -> Border | None:
    """(top, left, bottom, right) where ``op`` is a Pad of H and W with zeros that only convolutions read."""
    if not isinstance(op.kind, Pad) or op.outputs[0] in graph.outputs or len(op.kind.before) != 4:
        return None
    readers = [user for user in graph.ops if op.outputs[0] in user.inputs]
    quant = graph.tensors[op.inputs[0]].quant
    (n0, top, left, c0), (n1, bottom, right, c1) = op.kind.before, op.kind.after
    fits = all(isinstance(u.kind, Conv2D | DwConv2D) and u.inputs[0] == op.outputs[0] for u in readers)
    if not fits or any((n0, n1, c0, c1)) or quant is None or op.kind.value != quant.zero_point:
        return None
    return top, left, bottom, right


def _padded(op: Op, pads: dict[int, Border]) -> OpKind:
    """The kind of ``op`` with the Pad before it taken in."""
    if op.inputs[0] not in pads or not isinstance(op.kind, Conv2D | DwConv2D):
        return op.kind
    a, b = pads[op.inputs[0]], op.kind.pad
    return replace(op.kind, pad=(a[0] + b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3]))
