"""mcugrad inspect: what is in a model file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.table import Table

from mcugrad.cli.common import Output, command, group_digits, model_argument
from mcugrad.graph import Graph, Op, Tensor
from mcugrad.graph.edit import int8_share
from mcugrad.graph.edit import macs as layer_macs
from mcugrad.importer import read_model


@click.command()
@model_argument
@command
def inspect(out: Output, model: Path) -> dict[str, Any]:
    """Show the layers of MODEL, their names for --train, types and quantization."""
    graph = read_model(model, allow_float=True)
    macs = {op.name: layer_macs(graph, op) for op in graph.layers}
    total = sum(macs.values())
    parameters = sum(int(t.data.size) for t in graph.tensors if t.data is not None)
    result = {
        "model": str(model),
        "bytes": model.stat().st_size,
        "inputs": [_describe(graph.tensors[i]) for i in graph.inputs],
        "outputs": [_describe(graph.tensors[i]) for i in graph.outputs],
        "macs": total,
        "parameters": parameters,
        "int8_mac_share": int8_share(graph),
        "layers": [op.name for op in graph.layers],
        "ops": [_op(graph, op, macs.get(op.name, 0)) for op in graph.ops],
        "notes": list(graph.notes),
    }
    _show(out, result)
    return result


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
    table.add_column("layer", no_wrap=True)
    for column in ("output", "type", "scale", "zero point", "weights"):
        table.add_column(column)
    table.add_column("MACs", justify="right")
    for op in result["ops"]:
        y = op["outputs"][0]
        scale = f"{y['scale'][0]:.6g}" if y["scale"] else ""
        weights = "" if op["weights"] is None else "×".join(map(str, op["weights"]["shape"]))
        scales = op["weights"]["scale"] if op["weights"] else None
        per = "" if scales is None else (" per channel" if len(scales) > 1 else " per tensor")
        shape = "×".join(map(str, y["shape"]))
        zero = "" if y["zero_point"] is None else str(y["zero_point"])
        table.add_row(op["name"], shape, y["dtype"], scale, zero, weights + per, group_digits(op["macs"]) if op["macs"] else "")
    out.console.print(table)
    share = 100 * result["int8_mac_share"]
    out.console.print(f"{share:.0f} % of the multiply-accumulates are int8" + ("" if share == 100 else ": mcugrad quantize makes them so"))
    for note in result["notes"]:
        out.say(f"note: {note}")
