"""mcugrad eval: accuracy of a model on a board."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from mcugrad.board import open_board
from mcugrad.cli.common import Output, command, line_options, load_data, loss_option, model_argument
from mcugrad.cli.progress import bar
from mcugrad.link import Session
from mcugrad.link.baud import speed_up
from mcugrad.pipeline import compile_model
from mcugrad.training.resume import compile_for
from mcugrad.training.run import Evaluation, evaluate


@click.command("eval")
@model_argument
@click.option("--data", required=True, type=click.Path(path_type=Path), help=".npz with x (N, …) and y (N,).")
@click.option("--checkpoint", type=click.Path(path_type=Path), help="Evaluate with the weights of this checkpoint.")
@line_options
@loss_option
@command
def eval_(output: Output, model: Path, data: Path, checkpoint: Path | None, board: str, loss: str) -> dict[str, Any]:
    """Run MODEL on a board over a data set and show its accuracy."""
    compiled, state = compile_for(model, checkpoint) if checkpoint else (compile_model(model, None), None)
    dataset = load_data(output, data, compiled, regression=loss == "mse")
    with open_board(board) as (opened, transport):
        session = Session(transport)
        caps = opened.heard(session.hello())
        speed_up(session, transport)
        session.load_plan(compiled.plan)
        if state is not None:
            session.write_state(state)
        with bar(output, "evaluating", len(dataset.x)) as advance:
            found = evaluate(session, dataset, compiled.train, advance)
        session.bye()
    what = f"accuracy {100 * found.accuracy:.2f} %" if isinstance(found, Evaluation) else f"mean squared error {found.mse:.6g}"
    output.say(f"{what} of {len(dataset.x)} samples on {board}")
    return {
        "model": str(model),
        "board": board,
        "samples": len(dataset.x),
        **found.as_dict(),
        caps.tick_unit.name.lower() + "_per_sample": caps.units(int(found.ticks)),
    }
