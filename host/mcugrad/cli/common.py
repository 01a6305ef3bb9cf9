"""What the subcommands share: one shape of output, one shape of error, the options that recur."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource
from rich.console import Console

from mcugrad import data as datasets
from mcugrad.autodiff import Loss
from mcugrad.data import DataSet
from mcugrad.errors import McugradError, UsageError
from mcugrad.graph.permute import Channels
from mcugrad.lower import Options
from mcugrad.nearest import Request, require_fit_of
from mcugrad.pipeline import Compiled
from mcugrad.report import PlanReport, exceeds_ram
from mcugrad.training.run import classes_of

DEFAULT_BOARD = "qemu-mps2-an386"
Result = Mapping[str, Any]
F = TypeVar("F", bound=Callable[..., Any])


class Output:
    """Where a command's words go: people read ``console``, programs the one JSON object on standard output."""

    def __init__(self, name: str, as_json: bool) -> None:
        self.name = name
        self.as_json = as_json
        self.console = Console(stderr=as_json, quiet=as_json, highlight=False, markup=False, emoji=False)

    def say(self, text: str) -> None:
        """One line for people, never broken: it may hold a path that somebody will copy."""
        self.console.print(text, soft_wrap=True)

    def finish(self, result: Result) -> None:
        """The result of a command that went well."""
        if self.as_json:
            print(json.dumps({"schema": f"mcugrad.{self.name}/1", "status": "ok", "result": result}))

    def fail(self, error: McugradError) -> None:
        """One line on standard error, or the JSON object."""
        if self.as_json:
            detail = {"code": error.exit_code, "name": error.name, "text": error.text, "hint": error.hint}
            print(json.dumps({"schema": f"mcugrad.{self.name}/1", "status": "error", "error": detail}))
        else:
            print(" ".join(f"mcugrad {self.name}: {error}".split()), file=sys.stderr)


class InternalError(McugradError):
    """A defect of mcugrad."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"internal error, {type(error).__name__}: {error}", "please report it with the output of MCUGRAD_DEBUG=1")


class Interrupted(McugradError):
    """Ctrl-C."""

    exit_code = 130
    name = "interrupted"


def command(function: F) -> F:
    """Make ``function(output, …) -> result`` a subcommand body: --json, the result printed, errors as one line and an exit code."""

    @functools.wraps(function)
    def wrapper(as_json: bool, **arguments: Any) -> None:
        out = Output(function.__name__.rstrip("_"), as_json)
        try:
            out.finish(function(out, **arguments))
        except McugradError as e:
            out.fail(e)
            sys.exit(e.exit_code)
        except KeyboardInterrupt:
            out.fail(Interrupted("interrupted"))
            sys.exit(130)
        except (BrokenPipeError, click.ClickException):
            raise
        except OSError as e:
            if os.environ.get("MCUGRAD_DEBUG"):
                raise
            error = UsageError(f"{e.filename}: {e.strerror}", "check the path") if e.filename else InternalError(e)
            out.fail(error)
            sys.exit(error.exit_code)
        except Exception as e:
            if os.environ.get("MCUGRAD_DEBUG"):
                raise
            out.fail(InternalError(e))
            sys.exit(1)

    as_json = click.Option(["--json", "as_json"], is_flag=True, help="Print one JSON object instead of text.")
    wrapper.__dict__.setdefault("__click_params__", []).insert(0, as_json)  # kept from the last to the first: --json ends the help
    return wrapper  # type: ignore[return-value]


model_argument = click.argument("model", type=click.Path(path_type=Path))
board_option = click.option("--board", default=DEFAULT_BOARD, show_default=True, help="host, qemu-…, renode-…, or serial:PORT[:BAUD].")


def line_options(function: F) -> F:
    """--board of a command that talks to it, --port and --no-reset: ``board`` is all of them as one name for ``open_board``."""

    @board_option
    @click.option("--port", help="A serial port, tcp://HOST:PORT, or auto: the one whose board answers. Stands for --board serial:PORT.")
    @click.option("--no-reset", is_flag=True, help="Leave DTR and RTS of the serial port alone: on many boards they are wired to reset.")
    @functools.wraps(function)
    def wrapper(board: str, port: str | None, no_reset: bool, **arguments: Any) -> None:
        if port is not None:
            if click.get_current_context().get_parameter_source("board") is ParameterSource.COMMANDLINE:
                raise click.UsageError(f"--board {board} and --port {port}: give one of them")
            board = f"serial:{port}"
        if no_reset:
            if not board.startswith("serial:"):
                raise click.UsageError(f"--no-reset is for serial ports, --board {board} has none")
            board += ":no-reset"
        function(board=board, **arguments)

    return wrapper  # type: ignore[return-value]


classes_option = click.option(
    "--classes", type=click.IntRange(2, 65535), help="Replace the last layer by a fresh head of this many outputs."
)
rounding_option = click.option(
    "--rounding",
    type=click.Choice(["residual", "stochastic"]),
    default="residual",
    show_default=True,
    help="Trained weights: 16 bits with a residual plane, or int8 with stochastic rounding (half the memory).",
)
channels_option = click.option(
    "--channels",
    type=click.Choice([c.value for c in Channels]),
    default=Channels.FIRST.value,
    show_default=True,
    help="Which channels weights:NAME:RATIO trains: the first, or those with the largest weights.",
)


def load_data(output: Output, path: Path, compiled: Compiled, *, regression: bool | None = None) -> DataSet:
    """A data set for a compiled model, its labels checked. Says how its values became int8.

    ``regression``: y, or x itself, is the target; None lets the plan's loss say.
    """
    if compiled.train.loss is Loss.MSE if regression is None else regression:
        found = datasets.load_regression(path, compiled.model)
    else:
        found = datasets.load(path, compiled.model)
        datasets.check_labels(found, compiled.train.classes or classes_of(compiled.train.graph))
    for note in found.notes:
        output.say(f"{path.name}: {note}")
    return found


loss_option = click.option(
    "--loss",
    type=click.Choice(["auto", *(loss.value for loss in Loss)]),
    default="auto",
    show_default=True,
    help="xent: softmax cross-entropy; bce: binary cross-entropy on one logit; mse: regression, y (or x itself) is the target.",
)


def loss_of(word: str) -> Loss | None:
    """The loss of ``--loss``; None lets the end of the model decide."""
    return None if word == "auto" else Loss(word)


def request_options(function: F) -> F:
    """What to compile of MODEL, as one ``request``: --train, --channels, --classes, --rounding, --batch, --loss, --sram and --recompute.

    Goes below ``command``, which makes one line of what a Request may raise. ``request`` is None without a model.
    """

    @click.option(
        "--train",
        "scheme",
        default="head",
        show_default=True,
        help="What to train: head, bias:K, weights:NAME[:RATIO], all; or a .json file.",
    )
    @channels_option
    @classes_option
    @rounding_option
    @click.option(
        "--batch",
        type=int,
        default=1,
        show_default=True,
        help="Samples of a micro-batch: the weights move after so many. --lr goes with the mean of their gradients.",
    )
    @loss_option
    @click.option(
        "--sram",
        type=click.IntRange(1),
        help="RAM in bytes that may be used, stack and the trainer's own included.  [default: the board's]",
    )
    @click.option(
        "--recompute",
        is_flag=True,
        help="Compute twice whatever makes the plan smaller, even without need. (--sram does so where it must.)",
    )
    @functools.wraps(function)
    def wrapper(
        output: Output,
        *,
        model: Path | None,
        scheme: str,
        classes: int | None,
        rounding: str,
        batch: int,
        loss: str,
        channels: str,
        sram: int | None,
        recompute: bool,
        **arguments: Any,
    ) -> Result:
        request = None
        if model is not None:
            options = Options(weight_bytes(rounding), batch=batch)
            request = Request(model, scheme, classes, options, loss_of(loss), Channels(channels), sram, recompute)
        return function(output, request=request, **arguments)  # type: ignore[no-any-return]

    return wrapper  # type: ignore[return-value]


def demand_fit(output: Output, request: Request, compiled: Compiled, r: PlanReport) -> None:
    """Raise FitError where the plan does not fit. Looking for what does takes as long as a few plans."""
    if exceeds_ram(r):
        output.say("this does not fit, looking for the nearest scheme that does")
    require_fit_of(request, compiled, r)


def weight_bytes(rounding: str) -> int:
    """Bytes of a trained weight under ``--rounding``."""
    return 2 if rounding == "residual" else 1


def group_digits(n: int) -> str:
    """12345 -> 12,345."""
    return f"{n:,}"
