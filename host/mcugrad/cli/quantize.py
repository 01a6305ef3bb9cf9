"""mcugrad quantize: a float model into an int8 one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.table import Table

from mcugrad.cli.common import Output, command, group_digits, model_argument
from mcugrad.cli.progress import bar
from mcugrad.errors import DataError, ModelError, UsageError
from mcugrad.exporter import write_tflite
from mcugrad.graph import Graph, Tensor
from mcugrad.graph.edit import input_of, is_float, output_of
from mcugrad.importer import read_model
from mcugrad.quantize import Method, Options, quantize_graph
from mcugrad.quantize.quantizer import DEFAULT_PERCENTILE
from mcugrad.quantize.samples import RealSet, chosen, load_real
from mcugrad.quantize.score import Score, compare


@click.command()
@model_argument
@click.option(
    "--data", required=True, type=click.Path(path_type=Path), help="Representative samples: .npz with x (N, …), and y (N,) if known."
)
@click.option("--out", "-o", required=True, type=click.Path(path_type=Path), help="The .tflite file to write.")
@click.option("--eval", "held_out", type=click.Path(path_type=Path), help="Compare both models on this .npz instead of on --data.")
@click.option(
    "--method", type=click.Choice([m.value for m in Method]), default=Method.MINMAX.value, show_default=True, help="Range of an activation."
)
@click.option(
    "--percentile",
    type=click.FloatRange(50, 100, min_open=True),
    default=DEFAULT_PERCENTILE,
    show_default=True,
    help="Of the values that each end of a range keeps, with --method percentile.",
)
@click.option(
    "--samples", type=click.IntRange(1), default=256, show_default=True, help="How many of --data to calibrate on, chosen at random."
)
@click.option("--unit", is_flag=True, help="uint8 x means x / 255.")
@click.option("--per-channel-linear", is_flag=True, help="A weight scale for each output of linear layers too.")
@click.option(
    "--io", "border", type=click.Choice(["int8", "float"]), default="int8", show_default=True, help="Input and output of the new model."
)
@command
def quantize(
    output: Output,
    model: Path,
    data: Path,
    out: Path,
    held_out: Path | None,
    method: str,
    percentile: float,
    samples: int,
    unit: bool,
    per_channel_linear: bool,
    border: str,
) -> dict[str, Any]:
    """Quantize a float MODEL to int8 and show how both do, side by side."""
    if out.exists() and out.samefile(model):
        raise UsageError(f"{out} is the model itself", "write to another file")
    original = read_model(model, allow_float=True)
    if not is_float(original):
        raise ModelError(f"{model.name} is quantized already", "train it as it is: mcugrad train")
    calibration = _load(output, data, original, unit=unit)
    judged = _load(output, held_out, original, unit=unit) if held_out else calibration
    options = Options(Method(method), percentile, per_channel_linear, border == "float")
    some = chosen(calibration, samples)
    try:
        with bar(output, "calibrating", len(some)) as advance:
            quantized = quantize_graph(original, some.x, options, advance)
    except DataError as error:
        raise DataError(f"{data.name}: {error.text}", error.hint) from None
    write_tflite(quantized, out)
    with bar(output, "comparing", len(judged)) as advance:
        score = compare(original, read_model(out), judged, advance)
    bytes_before, bytes_after = model.stat().st_size, out.stat().st_size
    _show(output, score, (bytes_before, bytes_after), quantized, out)
    return {
        "model": str(model),
        "out": str(out),
        "method": method,
        "calibration_samples": len(some),
        "samples": score.samples,
        "accuracy": {"float": score.float_accuracy, "int8": score.int8_accuracy},
        "mse": score.mse,
        "power": score.power,
        "input": _quantization(input_of(quantized)),
        "output": _quantization(output_of(quantized)),
        "bytes": {"float": bytes_before, "int8": bytes_after},
        "notes": list(quantized.notes),
    }


def _load(output: Output, path: Path, graph: Graph, *, unit: bool) -> RealSet:
    found = load_real(path, graph, unit=unit)
    for note in found.notes:
        output.say(f"{path.name}: {note}")
    return found


def _quantization(tensor: Tensor) -> dict[str, Any]:
    assert tensor.quant is not None
    return {"scale": tensor.quant.scale[0], "zero_point": tensor.quant.zero_point}


def _show(output: Output, score: Score, sizes: tuple[int, int], quantized: Graph, out: Path) -> None:
    table = Table()
    for column in ("", "float", "int8"):
        table.add_column(column, justify="right" if column else "left")
    if score.float_accuracy is not None and score.int8_accuracy is not None:
        table.add_row("accuracy", f"{100 * score.float_accuracy:.2f} %", f"{100 * score.int8_accuracy:.2f} %")
    table.add_row("bytes", *map(group_digits, sizes))
    output.console.print(table)
    for what, t in (("input", input_of(quantized)), ("output", output_of(quantized))):
        q = _quantization(t)
        output.say(f"{what} {t.name}: int8, scale {q['scale']:.6g}, zero point {q['zero_point']}")
    for note in quantized.notes:
        output.say(f"note: {note}")
    output.say(
        f"outputs over {group_digits(score.samples)} samples differ by {score.mse:.3g} (mean square), their own is {score.power:.3g}"
    )
    output.say(f"wrote {out}")
