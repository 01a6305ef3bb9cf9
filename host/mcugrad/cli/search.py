"""mcugrad search: the best sparse-update scheme for a model, its data and a memory budget."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

import click

from mcugrad.board import find_board
from mcugrad.cli.common import (
    Interrupted,
    Output,
    board_option,
    channels_option,
    classes_option,
    command,
    group_digits,
    load_data,
    loss_of,
    loss_option,
    model_argument,
    rounding_option,
    weight_bytes,
)
from mcugrad.cli.progress import bar
from mcugrad.cli.train import TRAINED_LR
from mcugrad.errors import UsageError
from mcugrad.graph.permute import Channels
from mcugrad.lower import Options
from mcugrad.pipeline import compile_model
from mcugrad.search import Budget, By, Case, Outcome, Settings, Tools, open_engine
from mcugrad.search import search as run_search
from mcugrad.search.files import as_dict, write_files
from mcugrad.search.run import BODY_LR
from mcugrad.training.recipe import Recipe


@click.command()
@model_argument
@click.option("--data", required=True, type=click.Path(path_type=Path), help=".npz with x (N, …) and y (N,).")
@click.option("--eval", "eval_data", type=click.Path(path_type=Path), help="Held-out set for --by finetune.  [default: a fifth of --data]")
@board_option
@click.option("--sram", type=click.IntRange(1), help="RAM in bytes, stack and the trainer's own included.  [default: the board's]")
@click.option("--flash", type=click.IntRange(1), help="Flash in bytes, firmware included.  [default: the board's]")
@click.option(
    "--by",
    type=click.Choice([by.value for by in By]),
    default=By.FISHER.value,
    show_default=True,
    help="fisher: squared gradients, without training; tinytrain: the same by parameters and MACs; finetune: a short run each.",
)
@classes_option
@channels_option
@rounding_option
@loss_option
@click.option("--samples", type=click.IntRange(1), default=32, show_default=True, help="Samples whose gradients are measured.")
@click.option("--steps", type=click.IntRange(1), default=500, show_default=True, help="Training steps of each short run.")
@click.option("--lr", type=float, help="Learning rate of short runs.  [default: 0.02 with a fresh head, else 0.01]")
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=1, show_default=True, help="Choice of samples, short runs, evolution.")
@click.option("--plans", type=click.IntRange(1), default=400, show_default=True, help="Plans that are compiled to find the best scheme.")
@click.option("--jobs", type=click.IntRange(1, 256), default=1, show_default=True, help="Processes on this machine.")
@click.option("--scheduler", help="Address of a dask scheduler: work on its cluster (extra `cluster`).")
@click.option("--out", type=click.Path(path_type=Path), default=Path("search"), show_default=True, help="Folder of scores, scheme, report.")
@command
def search(
    output: Output,
    model: Path,
    data: Path,
    eval_data: Path | None,
    board: str,
    sram: int | None,
    flash: int | None,
    by: str,
    classes: int | None,
    channels: str,
    rounding: str,
    loss: str,
    samples: int,
    steps: int,
    lr: float | None,
    seed: int,
    plans: int,
    jobs: int,
    scheduler: str | None,
    out: Path,
) -> dict[str, Any]:
    """Find the best scheme to train MODEL under a memory budget, for --train.

    Scores what each layer's biases and weights contribute, then looks for the scheme that contributes most and fits. --out keeps every
    score as it is found: the same command goes on where it was stopped. Writes scheme.json, report.md and report.json there.
    """
    target = find_board(board)
    budget = Budget(target, sram or target.ram_bytes, flash or target.flash_bytes, plans)
    rate = (BODY_LR if classes else TRAINED_LR) if lr is None else lr
    settings = Settings(By(by), samples, steps, rate, seed, weight_bytes(rounding), loss_of(loss), Channels(channels))
    Recipe(1, rate, "cosine", 0.0, seed)
    head = compile_model(model, "head", classes, Options(ws=settings.ws, seed=seed), settings.loss)
    dataset = load_data(output, data, head)
    held_out = load_data(output, eval_data, head) if eval_data else None
    _prepare(out)
    try:
        with open_engine(jobs, scheduler) as engine:
            tools = Tools(engine, functools.partial(bar, output), out)
            found = run_search(Case(head, dataset, held_out, settings), budget, tools)
    except KeyboardInterrupt:
        raise Interrupted("interrupted", f"what was measured is in {out}: the same command goes on from there") from None
    files = write_files(found, settings, budget, out)
    _show(output, found, budget, files)
    return as_dict(found, settings, budget) | {"paths": files}


def _prepare(out: Path) -> None:
    """Make the folder, and see that it can be written. Raises UsageError."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as e:
        raise UsageError(f"--out {out}: cannot write there: {e.strerror}", "choose another folder") from None


def _show(output: Output, found: Outcome, budget: Budget, files: dict[str, str]) -> None:
    solution, ram, flash = found.solution, found.plan.ram, found.plan.flash
    if found.resumed:
        output.say(f"{found.resumed} scores were known from before")
    output.say(f"--train {found.words}")
    share = f", {100 * solution.value / found.best_possible:.3g} % of training everything" if found.best_possible > 0 else ""
    proof = "no better scheme fits" if solution.proven else "not proven to be the best"
    output.say(f"contributes {solution.value:.4g} ({found.contributions.unit}){share}; {solution.solver}: {proof}")
    output.say(
        f"RAM {group_digits(ram.total)} bytes of {group_digits(budget.ram)}: arena {group_digits(ram.arena)}, "
        f"state {group_digits(ram.state)}; flash {group_digits(flash.total)} of {group_digits(budget.flash)}"
    )
    for note in found.notes:
        output.say(f"note: {note}")
    for name, path in files.items():
        output.say(f"{name}: {path}")
