"""mcugrad export: a checkpoint back into a model file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from mcugrad.cli.common import Output, command, model_argument
from mcugrad.exporter import model_bytes
from mcugrad.training.checkpoint import write_atomic
from mcugrad.training.resume import compile_for


@click.command()
@model_argument
@click.option("--checkpoint", required=True, type=click.Path(path_type=Path), help="The .ckpt file that `mcugrad train` wrote.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The .tflite or .onnx file to write.")
@command
def export(output: Output, model: Path, checkpoint: Path, out: Path) -> dict[str, Any]:
    """Put the trained weights of a checkpoint into MODEL and write it as .tflite or .onnx."""
    compiled, state = compile_for(model, checkpoint)
    write_atomic(out, model_bytes(compiled.trained_model(state), out.suffix))
    output.say(f"wrote {out}")
    return {"model": str(model), "checkpoint": str(checkpoint), "out": str(out), "bytes": out.stat().st_size}
