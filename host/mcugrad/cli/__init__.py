"""The command line: `mcugrad COMMAND`. One file per subcommand."""

from __future__ import annotations

import json
import sys

import click

from mcugrad import __version__
from mcugrad.cli.bench import bench
from mcugrad.cli.boards import boards
from mcugrad.cli.build import build
from mcugrad.cli.check import check
from mcugrad.cli.checkpoint import checkpoint
from mcugrad.cli.doctor import doctor
from mcugrad.cli.eval import eval_
from mcugrad.cli.export import export
from mcugrad.cli.flash import flash
from mcugrad.cli.inspect import inspect
from mcugrad.cli.ops import ops
from mcugrad.cli.plan import plan
from mcugrad.cli.ports import ports
from mcugrad.cli.quantize import quantize
from mcugrad.cli.search import search
from mcugrad.cli.train import train
from mcugrad.cli.verify import verify


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="mcugrad")
def group() -> None:
    """Train int8 networks on Cortex-M microcontrollers.

    A .tflite or .onnx file goes in; a training plan that fits one board comes out; the board trains on the samples that this host streams
    to it; the trained model comes back.
    """


for _command in (
    inspect,
    ops,
    quantize,
    search,
    plan,
    build,
    train,
    eval_,
    check,
    verify,
    bench,
    export,
    flash,
    checkpoint,
    boards,
    ports,
    doctor,
):
    group.add_command(_command)


def main() -> None:
    """Entry point. Usage errors keep click's words, in JSON where --json was asked for; exit code 2."""
    try:
        code = group.main(standalone_mode=False)
    except click.ClickException as e:
        if "--json" in sys.argv:
            error = {"code": 2, "name": "usage", "text": e.format_message(), "hint": "see --help"}
            print(json.dumps({"schema": "mcugrad.usage/1", "status": "error", "error": error}))
        else:
            e.show()
        code = 2
    except click.Abort:
        code = 130
    sys.exit(code)
