"""mcugrad inspect: what is in a model file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.table import Table

from mcugrad.cli.common import Output, command, group_digits, model_argument
from mcugrad.graph import Graph, Op, Tensor
from mcugrad.graph.normalize import normalize
from mcugrad.importer import read_model
from mcugrad.pipeline import compile_graph


@click.command()
@model_argument
@command
def inspect(out: Output, model: Path) -> dict[str, Any]:
    """Show the layers of MODEL, their names for --train, types and quantization."""
    graph = read_model(model)
    normal = normalize(graph)
    macs = _macs(graph)
    total = sum(macs.values())
    parameters = sum(int(t.data.size) for t in graph.tensors if t.data is not None)
    result = {
        "model": str(model),
        "bytes": model.stat().st_size,
        "input": _describe(graph.tensors[normal.input]),
        "output": _describe(graph.tensors[normal.output]),
        "macs": total,
        "parameters": parameters,
        "int8_mac_share": 1.0 if total else 0.0,
        "layers": [op.name for op in graph.layers],
        "ops": [_op(graph, op, macs.get(op.name, 0)) for op in graph.ops],
        "notes": list(graph.notes),
    }
    _show(out, result)
    return result


def _macs(graph: Graph) -> dict[str, int]:
    program = compile_graph(graph, None).program
    return {step.label: macs for step, macs in zip(program.steps, program.step_macs, strict=True) if macs}


def _describe(tensor: Tensor) -> dict[str, Any]:
    quant = tensor.quant
    return {
        "name": tensor.name,
        "shape": list(tensor.shape),
        "dtype": np.dtype(tensor.dtype).name,
        "scale": list(quant.scale) if quant else None,
        "zero_point": quant.zero_point if quant else None,
    }


def _op(graph: Graph, op: Op, macs: int) -> dict[str, Any]:
    weights = _describe(graph.tensors[op.inputs[1]]) if op in graph.layers else None
    return {
        "name": op.name,
        "kind": type(op.kind).__name__,
        "inputs": [_describe(graph.tensors[i]) for i in op.inputs if graph.tensors[i].data is None],
        "outputs": [_describe(graph.tensors[i]) for i in op.outputs],
        "weights": weights,
        "macs": macs,
    }


def _show(out: Output, result: dict[str, Any]) -> None:
    table = Table(title=f"{result['model']}: {group_digits(result['macs'])} MACs, {group_digits(result['parameters'])} parameters")
    for column in ("layer", "output", "type", "scale", "zero point", "weights"):
        table.add_column(column)
    table.add_column("MACs", justify="right")
    for op in result["ops"]:
        y = op["outputs"][0]
        scale = f"{y['scale'][0]:.6g}" if y["scale"] else ""
        weights = "" if op["weights"] is None else "×".join(map(str, op["weights"]["shape"]))
        per = "" if op["weights"] is None else (" per channel" if len(op["weights"]["scale"]) > 1 else " per tensor")
        shape = "×".join(map(str, y["shape"]))
        zero = "" if y["zero_point"] is None else str(y["zero_point"])
        table.add_row(op["name"], shape, y["dtype"], scale, zero, weights + per, group_digits(op["macs"]) if op["macs"] else "")
    out.console.print(table)
    for note in result["notes"]:
        out.say(f"note: {note}")
