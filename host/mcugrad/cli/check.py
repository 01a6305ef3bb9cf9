"""mcugrad check: prove a board's numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.table import Table

from mcugrad.board import open_board
from mcugrad.cli.common import (
    Output,
    command,
    demand_fit,
    line_options,
    load_data,
    model_argument,
    request_options,
)
from mcugrad.cli.progress import bar
from mcugrad.data import DataSet
from mcugrad.link import Session
from mcugrad.nearest import Request, fit
from mcugrad.proof.check import Verdict, check_cold, check_settled
from mcugrad.training.recipe import Recipe
from mcugrad.training.run import train


@click.command()
@model_argument
@click.option("--data", required=True, type=click.Path(path_type=Path), help=".npz with x (N, …) and y (N,).")
@line_options
@click.option("--steps", type=click.IntRange(1), default=16, show_default=True, help="Samples to compare, before and after settling.")
@click.option(
    "--settle", type=click.IntRange(1), default=160, show_default=True, help="Samples to train on before the gradients are judged."
)
@click.option("--lr", type=float, default=0.01, show_default=True)
@command
@request_options
def check(
    output: Output,
    request: Request,
    data: Path,
    board: str,
    steps: int,
    settle: int,
    lr: float,
) -> dict[str, Any]:
    """Train on a board and in the NumPy reference, compare every step's output and all of STATE, and judge the gradients.

    Fails with exit code 7 at the first byte that differs, or where a gradient's cosine with the float gradient is under its bound.
    """
    compiled = request.compile()
    dataset = _some(load_data(output, data, compiled), settle + steps)
    recipe = Recipe(
        epochs=-(-(settle + steps) // len(dataset.x)), lr=lr, schedule="constant", skip=0.0, seed=1, batch=request.options.batch
    )
    with open_board(board) as (opened, transport):
        compiled, r = fit(request, compiled, opened)
        demand_fit(output, request, compiled, r)
        session = Session(transport)
        session.hello()
        session.load_plan(compiled.plan)
        cold = check_cold(session, compiled, dataset, recipe, steps)
        session.reset()
        with bar(output, "settling", recipe.epochs * len(dataset.x)) as advance:
            train(session, dataset, recipe, lambda _: advance())
        settled, gradients = check_settled(session, compiled, session.read_state(), dataset, recipe, steps)
        session.bye()
    verdict = Verdict(cold, settled, gradients)
    show_verdict(output, verdict, board)
    verdict.require(board)
    return verdict.as_dict()


def _some(dataset: DataSet, count: int) -> DataSet:
    """``count`` samples of ``dataset`` in random order, or all: files are often sorted by class."""
    assert dataset.y is not None
    chosen = np.random.default_rng(1).permutation(len(dataset.x))[:count]
    return DataSet(dataset.x[chosen], dataset.y[chosen])


def show_verdict(output: Output, verdict: Verdict, board: str) -> None:
    """Print the comparison and the table of gradients."""
    if verdict.cold.difference is None and verdict.settled.difference is None:
        samples = verdict.cold.samples + verdict.settled.samples
        outputs = verdict.cold.outputs + verdict.settled.outputs
        output.say(f"{board} equals the reference bit for bit: {outputs} step outputs and STATE over {samples} training samples")
    table = Table(title="integer gradients against float ones")
    for column in ("tensor", "median cosine", "5th percentile", "relative error"):
        table.add_column(column, justify="left" if column == "tensor" else "right")
    for q in verdict.gradients:
        table.add_row(f"{q.layer}.{q.what}", f"{q.median:.4f}", f"{q.p5:.4f}", f"{q.relative_error:.3f}")
    output.console.print(table)
