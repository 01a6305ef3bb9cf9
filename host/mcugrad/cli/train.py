"""mcugrad train: the main job. Compile, load, train on the board, evaluate, bring the model back."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import click

from mcugrad.board import Board, open_board
from mcugrad.cli.check import show_verdict
from mcugrad.cli.common import (
    Interrupted,
    Output,
    batch_option,
    board_option,
    channels_option,
    classes_option,
    command,
    demand_fit,
    group_digits,
    load_data,
    loss_option,
    model_argument,
    recompute_option,
    request_of,
    rounding_option,
    scheme_option,
    sram_option,
)
from mcugrad.cli.plan import show_report
from mcugrad.cli.progress import bar, training_bar
from mcugrad.data import DataSet
from mcugrad.errors import DivergedError, McugradError, UsageError
from mcugrad.link import Caps, Session
from mcugrad.lower import Options
from mcugrad.nearest import fit
from mcugrad.pipeline import Compiled
from mcugrad.proof.activations import dull_layers
from mcugrad.proof.check import Verdict, check_cold, check_settled
from mcugrad.proof.compare import Agreement
from mcugrad.report import PlanReport, thin_stack
from mcugrad.training.outcome import Files, RunLog, draw, save, unchanged
from mcugrad.training.recipe import SCHEDULES, Recipe
from mcugrad.training.run import Evaluation, Regression, Step, evaluate
from mcugrad.training.run import train as train_on_board

FRESH_LR, TRAINED_LR = 0.1, 0.01
"""Default learning rates: of a fresh head, and of a classifier that is adapted."""


@dataclass(slots=True)
class _Run:
    """One run: what it was given, and what it has found so far."""

    output: Output
    compiled: Compiled
    options: Options
    report: PlanReport
    recipe: Recipe
    data: DataSet
    held_out: DataSet | None
    check: int
    files: Files
    log: RunLog
    steps: list[Step] = field(default_factory=list)
    before: Evaluation | Regression | None = None
    after: Evaluation | Regression | None = None
    verdict: Verdict | None = None
    figures: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


@click.command()
@model_argument
@click.option("--data", required=True, type=click.Path(path_type=Path), help="Training set: .npz with x (N, …) and y (N,).")
@click.option("--eval", "eval_data", type=click.Path(path_type=Path), help="Held-out set for the accuracy before and after.")
@board_option
@sram_option
@recompute_option
@scheme_option
@channels_option
@classes_option
@click.option("--epochs", type=int, default=5, show_default=True)
@click.option("--lr", type=float, help="Learning rate in real units.  [default: 0.1 for a fresh head, else 0.01]")
@click.option("--schedule", type=click.Choice(SCHEDULES), default="cosine", show_default=True)
@click.option("--skip", type=float, default=0.1, show_default=True, help="Skip samples whose largest |dL/dlogit| is below this.")
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=1, show_default=True, help="Order of the samples, stochastic rounding.")
@rounding_option
@batch_option
@loss_option
@click.option("--check", type=click.IntRange(0), default=0, show_default=True, help="Samples to compare with the reference, bit for bit.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("trained.tflite"), show_default=True, help="The trained model.")
@command
def train(
    output: Output,
    model: Path,
    data: Path,
    eval_data: Path | None,
    board: str,
    sram: int | None,
    recompute: bool,
    scheme: str,
    channels: str,
    classes: int | None,
    epochs: int,
    lr: float | None,
    schedule: str,
    skip: float,
    seed: int,
    rounding: str,
    batch: int,
    loss: str,
    check: int,
    out: Path,
) -> dict[str, Any]:
    """Train MODEL on a board with the samples of --data, and write the trained .tflite.

    Beside --out come a checkpoint (.ckpt), a run log (.jsonl) and the loss curve (.svg). Ctrl-C saves the weights so far.
    """
    rate = (FRESH_LR if classes else TRAINED_LR) if lr is None else lr
    request = request_of(model, scheme, channels, classes, rounding, batch, loss, seed, recompute=recompute)
    recipe = Recipe(epochs, rate, schedule, skip if loss != "mse" else 0.0, seed, batch)
    _require_name(out, model)
    compiled = request.compile()
    dataset = load_data(output, data, compiled)
    held_out = load_data(output, eval_data, compiled) if eval_data else None
    files = Files.beside(out)
    files.prepare()
    output.say(f"model {model}, {len(dataset.x)} training samples")
    with open_board(board) as (opened, transport):
        compiled, r = fit(request, compiled, opened, sram)
        show_report(output, r)
        demand_fit(output, request, compiled, r)
        with files.log.open("w", encoding="utf-8") as log_file:
            run = _Run(output, compiled, request.options, r, recipe, dataset, held_out, check, files, RunLog(log_file))
            run.log.event("start", model=str(model), board=board, scheme=r.scheme, recipe=asdict(recipe), ram=asdict(r.ram))
            result = _conduct(run, opened, Session(transport))
            run.log.event("end", **result)
    return result


def _require_name(out: Path, model: Path) -> None:
    """Raise UsageError where ``out`` is no model file, or is the model that is trained."""
    if out.suffix not in (".tflite", ".onnx"):
        better = out / "trained.tflite" if out.is_dir() else out.with_suffix(".tflite")
        raise UsageError(f"--out {out}: the trained model is a .tflite or .onnx file", f"--out {better}")
    if out.exists() and model.exists() and out.samefile(model):
        raise UsageError(f"--out {out} is the model that is trained; its checkpoint needs it unchanged", "choose another --out")


def _conduct(run: _Run, board: Board, session: Session) -> dict[str, Any]:
    """The whole run on an open board."""
    caps = session.hello()
    session.load_plan(run.compiled.plan)
    cold = check_cold(session, run.compiled, run.data, run.recipe, run.check) if run.check else None
    session.reset()
    run.before = _evaluate(run, session, "evaluating before")
    with _ctrl_c_noted() as pressed:
        early = _train(run, session, caps, pressed)
        state = _save(run, session, board, early)
    if early is not None:
        raise early
    try:
        _judge(run, board, session, state, cold)
    except KeyboardInterrupt:
        raise Interrupted("interrupted", _where(run)) from None
    session.bye()
    _show(run, board, caps)
    if run.verdict is not None:
        run.verdict.require(board.name)
    return _result(run, board)


def _judge(run: _Run, board: Board, session: Session, state: bytes, cold: Agreement | None) -> None:
    """What is found out after training: accuracy, memory, and whether the board computes what the reference does."""
    run.after = _evaluate(run, session, "evaluating after")
    stats = session.stats()
    run.figures["ram_measured"] = {
        "arena": stats.arena_touched_bytes,
        "stack": stats.stack_peak_bytes,
        "runtime": stats.static_ram_bytes,
        "total": stats.pool_used_bytes + stats.stack_peak_bytes + stats.static_ram_bytes,
    }
    run.notes += thin_stack(board.name, stats.stack_peak_bytes, stats.stack_reserved_bytes)
    still = unchanged(run.compiled, state)
    run.figures["unchanged_weights"] = still.as_dict()
    run.notes += still.notes(run.steps, run.options.ws)
    run.notes += dull_layers(run.compiled, state, (run.held_out or run.data).x)
    if cold is not None:
        run.verdict = Verdict(cold, *check_settled(session, run.compiled, state, run.data, run.recipe, run.check))


def _train(run: _Run, session: Session, caps: Caps, pressed: Callable[[], bool]) -> McugradError | None:
    """Train to the end, or until Ctrl-C is pressed or the loss explodes: then the error that says so. All steps done are in ``run``."""
    sent, received, start = session.bytes_sent, session.bytes_received, time.monotonic()
    with training_bar(run.output, run.recipe.epochs * len(run.data.x)) as advance:

        def on_step(step: Step) -> None:
            run.steps.append(step)
            run.log.step(step)
            advance(step.loss)

        try:
            train_on_board(session, run.data, run.recipe, on_step, pressed)
        except DivergedError as e:
            return DivergedError(e.text, f"{e.hint}; {_where(run)}")
        finally:
            n = max(len(run.steps), 1)
            sent, received = session.bytes_sent - sent, session.bytes_received - received
            run.figures["link"] = {"bytes_sent": sent, "bytes_received": received, "bytes_per_sample": (sent + received) / n}
            run.figures["seconds"] = time.monotonic() - start
            run.figures[caps.tick_unit.name.lower() + "_per_step"] = caps.units(sum(s.ticks for s in run.steps) // n)
    return Interrupted("interrupted", _where(run)) if pressed() else None


@contextmanager
def _ctrl_c_noted() -> Iterator[Callable[[], bool]]:
    """Yields whether Ctrl-C was pressed: the samples on their way are then finished and saved. Pressed again, it interrupts at once."""
    presses: list[int] = []

    def press(number: int, _frame: FrameType | None) -> None:
        if presses:
            raise KeyboardInterrupt
        presses.append(number)

    previous = signal.signal(signal.SIGINT, press)
    try:
        yield lambda: bool(presses)
    finally:
        signal.signal(signal.SIGINT, previous)


def _save(run: _Run, session: Session, board: Board, early: McugradError | None) -> bytes:
    """Bring STATE home and write the trained model, the checkpoint and the curve, at the end or where training stopped early."""
    state = session.read_state()
    save(run.compiled, state, run.options, run.files)
    stopped = "" if early is None else f", stopped after {len(run.steps)} steps"
    draw(run.steps, run.recipe.epochs, f"training loss of {run.compiled.model.name} on {board.name}{stopped}", run.files)
    if early is not None:
        run.log.event("stopped", steps=len(run.steps), reason=early.text)
    return state


def _where(run: _Run) -> str:
    return f"the weights after {len(run.steps)} steps are in {run.files.model} and {run.files.checkpoint}"


def _evaluate(run: _Run, session: Session, what: str) -> Evaluation | Regression | None:
    if run.held_out is None:
        return None
    with bar(run.output, what, len(run.held_out.x)) as advance:
        found = evaluate(session, run.held_out, run.compiled.train, advance)
    run.log.event("evaluation", when=what.rsplit(maxsplit=1)[-1], **found.as_dict())
    return found


def _result(run: _Run, board: Board) -> dict[str, Any]:
    return {
        "board": board.name,
        "timing": "emulated" if board.emulated else "measured",
        "loss": run.compiled.train.loss.value if run.compiled.train.loss else None,
        **_before_after(run),
        "steps": len(run.steps),
        "skipped": sum(s.skipped for s in run.steps),
        **run.figures,
        "plan": run.report.as_dict(),
        "notes": run.notes,
        "check": run.verdict.as_dict() if run.verdict else None,
        "paths": run.files.as_dict(),
    }


def _before_after(run: _Run) -> dict[str, Any]:
    """The accuracy, or the mean squared error of a regression, before and after; None where nothing was held out."""
    if isinstance(run.before, Regression) and isinstance(run.after, Regression):
        return {"accuracy": None, "mse": {"before": run.before.mse, "after": run.after.mse}}
    if isinstance(run.before, Evaluation) and isinstance(run.after, Evaluation):
        return {"accuracy": {"before": run.before.accuracy, "after": run.after.accuracy}}
    return {"accuracy": None}


def _show(run: _Run, board: Board, caps: Caps) -> None:
    say = run.output.say
    measured, link = run.figures["ram_measured"], run.figures["link"]
    n = len(run.held_out.x) if run.held_out else 0
    if isinstance(run.before, Evaluation) and isinstance(run.after, Evaluation):
        say(f"accuracy on {n} held-out samples: {100 * run.before.accuracy:.2f} % before, {100 * run.after.accuracy:.2f} % after")
    if isinstance(run.before, Regression) and isinstance(run.after, Regression):
        say(f"mean squared error on {n} held-out samples: {run.before.mse:.6g} before, {run.after.mse:.6g} after")
    skipped = sum(s.skipped for s in run.steps)
    say(f"{len(run.steps)} training steps, {skipped} of them certain already and skipped, in {run.figures['seconds']:.1f} s")
    unit = caps.tick_unit.name.lower()
    per_step = run.figures[f"{unit}_per_step"]
    if per_step is not None:
        say(f"{group_digits(per_step)} {unit} a step{' (emulated)' if board.emulated else ''}")
    say(f"{link['bytes_per_sample']:.0f} bytes a sample on the wire, both ways")
    say(
        f"RAM: {group_digits(run.report.ram.total)} bytes planned, {group_digits(measured['total'])} measured "
        f"(stack peak {group_digits(measured['stack'])} of {group_digits(run.report.ram.stack)})"
    )
    if run.verdict is not None:
        show_verdict(run.output, run.verdict, board.name)
    for note in run.notes:
        say(f"note: {note}")
    for name, path in run.files.as_dict().items():
        say(f"{name}: {path}")
