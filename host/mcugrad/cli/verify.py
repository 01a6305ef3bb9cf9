"""mcugrad verify: the forward pass of a model, everywhere, against an oracle."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.table import Table

from mcugrad import data as datasets
from mcugrad.board import open_board
from mcugrad.cli.common import Output, command, model_argument
from mcugrad.cli.progress import bar
from mcugrad.link import Session
from mcugrad.native import NativeMachine
from mcugrad.pipeline import Compiled, compile_model
from mcugrad.proof.oracle import Int8, LiteRtOracle, load_oracle
from mcugrad.proof.verify import (
    Compared,
    Executor,
    LayerCompared,
    boundary_inputs,
    compare_layers,
    random_inputs,
    require_layers,
)
from mcugrad.proof.verify import (
    verify as compare,
)
from mcugrad.ref.run import Machine


@click.command()
@model_argument
@click.option("--data", type=click.Path(path_type=Path), help="Also verify the samples of this .npz.")
@click.option("--oracle", type=click.Choice(["auto", "tflm", "litert", "ort"]), default="auto", show_default=True)
@click.option("--layerwise", is_flag=True, help="Compare every layer with LiteRT's reference kernels, and name the first that differs.")
@click.option("--inputs", type=click.IntRange(0), default=20, show_default=True, help="Random inputs, and as many boundary inputs.")
@click.option("--board", "boards", multiple=True, help="Also run on this board; may be given more than once.")
@click.option("--seed", type=int, default=1, show_default=True)
@command
def verify(
    output: Output, model: Path, data: Path | None, oracle: str, layerwise: bool, inputs: int, boards: tuple[str, ...], seed: int
) -> dict[str, Any]:
    """Run MODEL in the NumPy reference, in the C runtime on this machine and on boards, and compare with an oracle.

    Exit code 7 at the first difference, with the layer where it begins.
    """
    compiled = compile_model(model, None)
    values = _inputs(compiled, inputs, seed, data)
    witness = load_oracle(oracle, model, compiled.model)
    layers = _layers(compiled, model, values) if layerwise else []
    with ExitStack() as stack:
        executors: dict[str, Executor] = {"reference": Machine(compiled.plan).predict, "host C": NativeMachine(compiled.plan).predict}
        for board in boards:
            executors[board] = _on_board(stack, board, compiled)
        with bar(output, "verifying", len(values)) as advance:
            found = compare(compiled, witness, executors, values, advance)
    _show(output, witness.name, found, layers)
    return {
        "model": str(model),
        "oracle": witness.name,
        "tolerance": witness.tolerance,
        "inputs": len(values),
        "executors": [asdict(c) for c in found],
        "layers": [asdict(layer) for layer in layers],
    }


def _inputs(compiled: Compiled, count: int, seed: int, data: Path | None) -> list[list[Int8]]:
    graph = compiled.train.graph
    tensors = [graph.tensors[i] for i in graph.inputs]
    sizes = [t.size for t in tensors]
    zero_points = [t.quant.zero_point if t.quant else 0 for t in tensors]
    values = random_inputs(sizes, count, seed) + boundary_inputs(sizes, zero_points, count)
    if data is not None:
        values += [[np.asarray(x, np.int8).reshape(-1)] for x in datasets.load(data, compiled.model).x]
    return values


def _layers(compiled: Compiled, model: Path, values: list[list[Int8]]) -> list[LayerCompared]:
    """The worst of every layer over the inputs; the first difference raises."""
    litert = LiteRtOracle(model.read_bytes(), compiled.model)
    layers: list[LayerCompared] = []
    for row in values:
        layers = compare_layers(compiled, row, litert)
        require_layers(layers)
    return layers


def _on_board(stack: ExitStack, board: str, compiled: Compiled) -> Executor:
    _, transport = stack.enter_context(open_board(board))
    session = Session(transport)
    session.hello()
    session.load_plan(compiled.plan)

    def run(sample: Int8) -> Int8:
        session.sample(sample)
        return session.predict().output

    return run


def _show(output: Output, oracle: str, found: list[Compared], layers: list[LayerCompared]) -> None:
    table = Table(title=f"against {oracle}")
    for column in ("executor", "inputs", "values", "equal", "largest difference"):
        table.add_column(column, justify="left" if column == "executor" else "right")
    for c in found:
        table.add_row(c.executor, str(c.inputs), f"{c.values:,}", f"{c.equal:,}", str(c.largest))
    output.console.print(table)
    if layers:
        output.console.print(f"{len(layers)} layers equal LiteRT's reference kernels")
