"""mcugrad train: the main job. Compile, load, train on the board, evaluate, bring the model back."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

import click

from mcugrad.autodiff import Loss
from mcugrad.board import Board, open_board
from mcugrad.cli.check import show_verdict
from mcugrad.cli.checkpoint import as_dict, wear
from mcugrad.cli.common import (
    Interrupted,
    Output,
    command,
    demand_fit,
    group_digits,
    line_options,
    load_data,
    model_argument,
    request_options,
)
from mcugrad.cli.plan import show_report
from mcugrad.cli.progress import bar, training_bar
from mcugrad.data import DataSet
from mcugrad.errors import DivergedError, FitError, LinkError, McugradError, UsageError
from mcugrad.link import Caps, Loaded, Session, TickUnit, Transport
from mcugrad.link.baud import speed_up
from mcugrad.link.protocol import HEAD_BYTES
from mcugrad.lower import Options
from mcugrad.nearest import Request, fit
from mcugrad.pipeline import Compiled
from mcugrad.proof.activations import dull_layers
from mcugrad.proof.check import Verdict, check_cold, check_settled
from mcugrad.proof.compare import Agreement
from mcugrad.report import PlanReport, thin_stack
from mcugrad.training.outcome import Files, RunLog, draw, save, unchanged
from mcugrad.training.progress import Progress, begin, earlier_evaluation, earlier_steps, read_progress, take_up, write_progress
from mcugrad.training.recipe import SCHEDULES, Recipe
from mcugrad.training.run import Evaluation, Keeping, Regression, Step, evaluate
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
    restore: bool
    files: Files
    log: RunLog
    progress: Progress
    resume: bool
    snapshot: int
    begin: int = 0
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
@line_options
@click.option("--epochs", type=int, default=5, show_default=True)
@click.option("--lr", type=float, help="Learning rate in real units.  [default: 0.1 for a fresh head, else 0.01]")
@click.option("--schedule", type=click.Choice(SCHEDULES), default="cosine", show_default=True)
@click.option("--skip", type=float, default=0.1, show_default=True, help="Skip samples whose largest |dL/dlogit| is below this.")
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=1, show_default=True, help="Order of the samples, stochastic rounding.")
@click.option("--check", type=click.IntRange(0), default=0, show_default=True, help="Samples to compare with the reference, bit for bit.")
@click.option("--save-every", type=click.IntRange(1), help="Keep a checkpoint in the board's flash every so many samples, and at the end.")
@click.option("--restore", is_flag=True, help="Begin with the newest checkpoint in the board's flash instead of MODEL's weights.")
@click.option("--snapshot", type=click.IntRange(1), help="Bring STATE to the host every so many samples: --resume then loses less.")
@click.option("--resume", is_flag=True, help="Go on with the run of the same command that was cut off, at the sample it had reached.")
@click.option("--deadline", type=click.FloatRange(0.1), default=30.0, show_default=True, help="Seconds without an answer: then give up.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("trained.tflite"), show_default=True, help="The trained model.")
@command
@request_options
def train(
    output: Output,
    request: Request,
    data: Path,
    eval_data: Path | None,
    board: str,
    epochs: int,
    lr: float | None,
    schedule: str,
    skip: float,
    seed: int,
    check: int,
    save_every: int | None,
    restore: bool,
    snapshot: int | None,
    resume: bool,
    deadline: float,
    out: Path,
) -> dict[str, Any]:
    """Train MODEL on a board with the samples of --data, and write the trained .tflite.

    --restore takes the weights, sums and random numbers of the checkpoint; epochs, order and learning rate begin anew.
    Beside --out come a checkpoint (.ckpt), a run log (.jsonl) and the loss curve (.svg). Ctrl-C saves the weights so far.
    A run that was cut off goes on with the same command and --resume, and ends with the same weights.
    """
    request = replace(request, options=replace(request.options, seed=seed))
    rate = (FRESH_LR if request.classes else TRAINED_LR) if lr is None else lr
    limit = skip if request.loss is not Loss.MSE else 0.0
    recipe = Recipe(epochs, rate, schedule, limit, seed, request.options.batch, save_every or 0)
    _require_name(out, request.model)
    compiled = request.compile()
    dataset = load_data(output, data, compiled)
    held_out = load_data(output, eval_data, compiled) if eval_data else None
    files = Files.beside(out)
    files.prepare()
    saved = read_progress(files.progress) if resume else None
    if saved is None:
        files.progress.unlink(missing_ok=True)
    output.say(f"model {request.model}, {len(dataset.x)} training samples")
    with open_board(board) as (opened, transport):
        compiled, r = fit(request, compiled, opened)
        show_report(output, r)
        demand_fit(output, request, compiled, r)
        progress = Progress.of(compiled, dataset, recipe)
        if saved is not None:
            saved.require_same(progress)
        with files.log.open("w" if saved is None else "a", encoding="utf-8") as log_file:
            log = RunLog(log_file)
            more = saved or progress, resume, snapshot or 0
            run = _Run(output, compiled, request.options, r, recipe, dataset, held_out, check, restore, files, log, *more)
            kind = "resume" if resume else "start"
            run.log.event(kind, model=str(request.model), board=board, scheme=r.scheme, recipe=asdict(recipe), ram=asdict(r.ram))
            try:
                result = _conduct(run, opened, transport, Session(transport, deadline))
            except LinkError as e:
                raise _resumable(run, e) from e
            run.log.event("end", **result)
    return result


def _require_name(out: Path, model: Path) -> None:
    """Raise UsageError where ``out`` is no model file, or is the model that is trained."""
    if out.suffix not in (".tflite", ".onnx"):
        better = out / "trained.tflite" if out.is_dir() else out.with_suffix(".tflite")
        raise UsageError(f"--out {out}: the trained model is a .tflite or .onnx file", f"--out {better}")
    if out.exists() and model.exists() and out.samefile(model):
        raise UsageError(f"--out {out} is the model that is trained; its checkpoint needs it unchanged", "choose another --out")


def _conduct(run: _Run, board: Board, transport: Transport, session: Session) -> dict[str, Any]:
    """The whole run on an open board."""
    session.hello()
    rate = speed_up(session, transport)
    if rate is not None:
        run.output.say(f"{transport.name} runs at {group_digits(rate)} baud")
    run.figures["baud"] = rate
    caps = board.heard(session.caps)
    cold = None
    if run.resume:
        _resume(run, session)
    else:
        cold = _begin(run, session, caps)
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
    run.files.progress.unlink(missing_ok=True)
    _show(run, board, caps)
    if run.verdict is not None:
        run.verdict.require(board.name)
    return _result(run, board)


def _begin(run: _Run, session: Session, caps: Caps) -> Agreement | None:
    """The plan on the board, STATE at its start. Returns what the check of cold steps has found, if one is wanted."""
    _demand_slots(run, caps, session.load_plan(run.compiled.plan))
    cold = check_cold(session, run.compiled, run.data, run.recipe, run.check) if run.check else None
    session.reset()
    if run.restore:
        run.output.say(f"began with checkpoint {session.restore()} in the board's flash")
    run.before = _evaluate(run, session, "evaluating before")
    run.progress = begin(session, run.progress, session.read_state() if run.restore else b"")
    write_progress(run.files.progress, run.progress)
    return cold


def _resume(run: _Run, session: Session) -> None:
    """The board and ``run`` as they were when the run was cut off, or at the last snapshot."""
    taken = take_up(session, run.compiled, run.progress, len(run.data.x))
    run.progress, run.begin = taken.progress, taken.position
    write_progress(run.files.progress, run.progress)
    run.steps = earlier_steps(run.files.log, taken.position)
    run.before = earlier_evaluation(run.files.log)
    lost = taken.position - len(run.steps)
    run.log.event("resumed", position=taken.position, source=taken.source, replies_lost=lost)
    where = "which the board still holds" if taken.source == "board" else "from the last snapshot"
    run.output.say(f"goes on after {taken.position} samples, {where}" + (f"; the losses of {lost} never came" if lost else ""))
    if run.check:
        run.notes.append("--check compares whole runs only: a resumed one is not checked")


def _demand_slots(run: _Run, caps: Caps, loaded: Loaded) -> None:
    """Raise FitError where the board cannot keep the checkpoints that are asked for: not after an hour of training."""
    need = HEAD_BYTES + loaded.state_bytes
    if run.recipe.save_every and need > caps.checkpoint_bytes:
        raise FitError(
            f"--save-every {run.recipe.save_every}: a checkpoint needs {need:,} bytes of flash, a slot of {caps.board} has "
            f"{caps.checkpoint_bytes:,}",
            "set checkpoint_bytes in its board.toml, pick a smaller scheme, or train without --save-every",
        )


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
    run.figures["checkpoints"] = None
    if run.recipe.save_every:
        kept = session.checkpoints()
        run.figures["checkpoints"] = as_dict(kept)
        run.notes.append(wear(kept, run.recipe.save_every))
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
        for step in run.steps:
            advance(step.loss)

        def on_step(step: Step) -> None:
            run.steps.append(step)
            run.log.step(step)
            advance(step.loss)

        def keep(position: int) -> None:
            run.progress = replace(run.progress, position=position, state=session.read_state())
            write_progress(run.files.progress, run.progress)

        try:
            keeping = Keeping(run.snapshot, keep)
            train_on_board(session, run.data, run.recipe, on_step, pressed, keeping, tuple(run.steps), run.begin)
        except DivergedError as e:
            return DivergedError(e.text, f"{e.hint}; {_where(run)}")
        finally:
            n = max(len(run.steps), 1)
            sent, received = session.bytes_sent - sent, session.bytes_received - received
            run.figures["link"] = {"bytes_sent": sent, "bytes_received": received, "bytes_per_sample": (sent + received) / n}
            run.figures["seconds"] = time.monotonic() - start
            run.figures[_ticks_of(caps) + "_per_step"] = caps.units(sum(s.ticks for s in run.steps) // n)
    return Interrupted("interrupted", _where(run)) if pressed() else None


def _resumable(run: _Run, e: LinkError) -> LinkError:
    """``e`` with the way to go on, where the line and not the board is to blame."""
    if type(e) is not LinkError or not run.files.progress.exists():
        return e
    return LinkError(f"{e.text}; {len(run.steps)} samples are acknowledged", f"{e.hint}, with the same command and --resume")


def _ticks_of(caps: Caps) -> str:
    """What the board counts: cycles, whose number is null, where its counter does not move."""
    return "cycles" if caps.tick_unit is TickUnit.NONE else caps.tick_unit.name.lower()


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
        write_progress(run.files.progress, replace(run.progress, state_id=0))  # what is on the board may have been committed
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
    unit = _ticks_of(caps)
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
