"""mcugrad ops: what is supported, read from the code."""

from __future__ import annotations

from typing import Any, get_args

import click
from rich.table import Table

from mcugrad.autodiff.rules import RULES
from mcugrad.cli.common import Output, command
from mcugrad.graph import Dequantize, OpKind, Quantize, Reshape
from mcugrad.importer.names import operator_names


@click.command()
@command
def ops(output: Output) -> dict[str, Any]:
    """List the ops: forward, error (gradient of the input), weight gradient, and their names in model files."""
    rows = support()
    table = Table()
    for column in ("op", "forward", "error", "weights", "in .tflite", "in .onnx"):
        table.add_column(column, overflow="fold")
    for row in rows:
        marks = ["yes" if row[k] else "–" for k in ("forward", "error", "weights")]
        table.add_row(row["op"], *marks, ", ".join(row["tflite"]), ", ".join(row["onnx"]))
    output.console.print(table)
    output.console.print("an op without error may stand before the deepest trained layer")
    return {"ops": rows}


def support() -> list[dict[str, Any]]:
    """One row an op kind of graph/types.py."""
    return [_row(kind) for kind in get_args(OpKind)]


def _row(kind: type[OpKind]) -> dict[str, Any]:
    rule = RULES.get(kind)
    names = {file: sorted(name for name, kinds in operator_names(file).items() if kind in kinds) for file in ("tflite", "onnx")}
    free = kind in (Reshape, Quantize, Dequantize)
    return {"op": kind.__name__, "forward": True, "error": rule is not None or free, "weights": bool(rule and rule.weight), **names}
