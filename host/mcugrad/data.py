"""Data set files: .npz with x (N, …) and y -> DataSet, int8 and checked.

How x becomes int8, with s and z the scale and zero point of the model's input:

- int8: taken as it is.
- float: q = z + round(x / s), half away from zero, in float32 as TensorFlow Lite's QUANTIZE does it, then clipped to -128 … 127.
- uint8: the value itself, 0 … 255, is the real number; but where s is about 1/255 the model was trained on 0 … 1, and x / 255 is the real
  number. Then as float.

y is one class number per sample for ``load`` (0 or 1 for binary cross-entropy: two classes). For ``load_regression`` y is the wanted
output of each sample: int8 is taken as codes of the model's output, float is quantized like x with the output's scale and zero point.
Without y the target is the sample itself, as an autoencoder wants it: its real values, quantized with the output's scale and zero point.

A note says which of them was done, and how many values were clipped.
"""

from __future__ import annotations

import math
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mcugrad.errors import DataError
from mcugrad.graph.edit import input_of, is_float, output_of
from mcugrad.graph.types import Graph, Tensor

UNIT_SCALE = 1 / 255
UNIT_SCALE_TOLERANCE = 0.02
HINT_NPZ = "save it with numpy.savez(path, x=…, y=…)"


@dataclass(frozen=True, slots=True, eq=False)
class DataSet:
    """x int8 (N, *the model's input shape without batch), y int64 (N,) or None where there are no labels, target int8 (N, *the model's
    output shape without batch) or None where the loss is one of classes."""

    x: npt.NDArray[np.int8]
    y: npt.NDArray[np.int64] | None
    notes: tuple[str, ...] = ()
    target: npt.NDArray[np.int8] | None = None

    def __len__(self) -> int:
        return len(self.x)


def load(path: str | Path, graph: Graph) -> DataSet:
    """Read an .npz file with x and class numbers y (other arrays are ignored) for a model with one input. Raises DataError."""
    path = Path(path)
    arrays = read_arrays(path)
    try:
        return labelled(_array(arrays, "x"), _array(arrays, "y"), graph)
    except DataError as error:
        raise DataError(f"{path.name}: {error.text}", error.hint) from None


def load_regression(path: str | Path, graph: Graph) -> DataSet:
    """Read an .npz file with x and, if it has one, y: the wanted output of each sample, else x itself. Raises DataError."""
    path = Path(path)
    arrays = read_arrays(path)
    try:
        return regression(_array(arrays, "x"), arrays.get("y"), graph)
    except DataError as error:
        raise DataError(f"{path.name}: {error.text}", error.hint) from None


def labelled(x: npt.NDArray[np.generic], y: npt.NDArray[np.generic], graph: Graph) -> DataSet:
    """x (N, …) and class numbers y (N,) for a model with one input. Raises DataError."""
    samples, notes = _samples(x, _only_input(graph))
    return DataSet(samples, read_labels(y, len(samples)), notes)


def regression(x: npt.NDArray[np.generic], y: npt.NDArray[np.generic] | None, graph: Graph) -> DataSet:
    """x (N, …) and the wanted output of each sample, or None: x itself. Raises DataError."""
    samples, notes = _samples(x, _only_input(graph))
    target, more = _targets(y, len(samples), output_of(graph)) if y is not None else _itself(x, graph)
    return DataSet(samples, None, notes + more, target)


def _array(arrays: dict[str, npt.NDArray[np.generic]], name: str) -> npt.NDArray[np.generic]:
    if name not in arrays:
        raise DataError(f"no array {name}, only {', '.join(sorted(arrays)) or 'nothing'}", HINT_NPZ)
    return arrays[name]


def _only_input(graph: Graph) -> Tensor:
    if len(graph.inputs) != 1:
        names = ", ".join(graph.tensors[i].name for i in graph.inputs)
        raise DataError(f"the model has {len(graph.inputs)} inputs ({names}), a data set has one, x", "use a model with one input")
    if is_float(graph):
        raise DataError("the model computes in float", "quantize it first: mcugrad quantize MODEL --data calib.npz -o model.tflite")
    return input_of(graph)


def check_labels(data: DataSet, classes: int) -> npt.NDArray[np.int64]:
    """The labels of a data set, all of them in 0 … classes - 1. Raises DataError."""
    if data.y is None:
        raise DataError("the data has no labels", HINT_NPZ)
    wrong = np.flatnonzero((data.y < 0) | (data.y >= classes))
    if wrong.size:
        first = int(wrong[0])
        raise DataError(
            f"sample {first} has label {int(data.y[first])}, the model has {classes} classes (0 to {classes - 1}); "
            f"{wrong.size:,} of {len(data.y):,} labels are out of range",
            "number the labels from 0, or give the model a new head with --classes",
        )
    return data.y


def read_arrays(path: Path) -> dict[str, npt.NDArray[np.generic]]:
    """The arrays x and y of a file, and of the others the names only (as empty arrays)."""
    if not path.is_file():
        raise DataError(f"there is no data file {path}", "check the path")
    if not zipfile.is_zipfile(path):
        raise DataError(f"{path.name} is not an .npz file", HINT_NPZ)
    found: dict[str, npt.NDArray[np.generic]] = {}
    try:
        with np.load(path, allow_pickle=False) as file:
            for name in file.files:
                found[name] = np.asarray(file[name]) if name in ("x", "y") else np.zeros(0)
    except (
        OSError,
        ValueError,
        KeyError,
        EOFError,
        MemoryError,
        RuntimeError,
        NotImplementedError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        if "pickle" in str(error):
            raise DataError(f"{path.name} has pickled Python objects, which are never loaded", "save plain numeric arrays") from None
        raise DataError(f"{path.name} is damaged ({error})", HINT_NPZ) from None
    return found


def _samples(x: npt.NDArray[np.generic], wanted: Tensor) -> tuple[npt.NDArray[np.int8], tuple[str, ...]]:
    """x in any accepted dtype -> int8 in the shape of the model's input, and notes."""
    if x.dtype not in (np.int8, np.uint8) and x.dtype.kind != "f":
        raise DataError(f"x is {x.dtype}: float, uint8 or int8 is expected", "convert it with x.astype(numpy.float32)")
    if x.ndim == 0 or len(x) == 0:
        raise DataError(f"x of shape {x.shape} has no samples", HINT_NPZ)
    _require_shape("x", x, wanted, "the model's input")
    if x.dtype == np.int8:
        return x.astype(np.int8, copy=False).reshape(len(x), *wanted.shape[1:]), ()
    real, how = _real(x, wanted)
    q, notes = _quantized(real, wanted, "x", how)
    return q.reshape(len(x), *wanted.shape[1:]), notes


def _targets(y: npt.NDArray[np.generic], samples: int, wanted: Tensor) -> tuple[npt.NDArray[np.int8], tuple[str, ...]]:
    """y, int8 or float -> int8 in the shape of the model's output, and notes."""
    if y.dtype != np.int8 and y.dtype.kind != "f":
        raise DataError(f"y is {y.dtype}: float or int8 is expected of a regression target", "convert it with y.astype(numpy.float32)")
    if y.ndim == 0 or len(y) != samples:
        raise DataError(f"x has {samples:,} samples and y of shape {y.shape} has not as many targets", "they must be equal in number")
    _require_shape("y", y, wanted, "the model's output")
    shape = (samples, *wanted.shape[1:])
    if y.dtype == np.int8:
        return y.astype(np.int8, copy=False).reshape(shape), ()
    q, notes = _quantized(_as_float32(y), wanted, "y", f"y is {y.dtype}, taken as real values")
    return q.reshape(shape), notes


def _itself(x: npt.NDArray[np.generic], graph: Graph) -> tuple[npt.NDArray[np.int8], tuple[str, ...]]:
    """The real values of x as the target of an autoencoder."""
    source, wanted = input_of(graph), output_of(graph)
    if source.size != wanted.size:
        raise DataError(
            f"no array y, and x cannot be its own target: the model's input is {source.shape[1:]}, its output {wanted.shape[1:]}",
            "add y, the wanted output of each sample",
        )
    q, notes = _quantized(_real(x, source)[0], wanted, "the target", "there is no y, the target is x itself")
    return q.reshape(len(x), *wanted.shape[1:]), notes


def _require_shape(name: str, values: npt.NDArray[np.generic], wanted: Tensor, what: str) -> None:
    """Sizes of one do not matter."""
    sample, shape = values.shape[1:], wanted.shape[1:]
    if [d for d in sample if d != 1] != [d for d in shape if d != 1]:
        raise DataError(f"{name} has samples of shape {sample}, {what} is {shape}", f"reshape {name}, or prepare it as for the model")


def _real(x: npt.NDArray[np.generic], source: Tensor) -> tuple[npt.NDArray[np.float32], str]:
    """The real values that x stands for, and how they were read."""
    assert source.quant is not None
    scale, zero_point = source.quant.scale[0], source.quant.zero_point
    if x.dtype == np.int8:
        codes = x.astype(np.int32)
        return np.float32(scale) * (codes - zero_point).astype(np.float32), "x is int8"
    if x.dtype == np.uint8 and math.isclose(scale, UNIT_SCALE, rel_tol=UNIT_SCALE_TOLERANCE):
        return x.astype(np.float32) / np.float32(255), "x is uint8, taken as x / 255 (the model's input is 0 to 1)"
    if x.dtype == np.uint8:
        return x.astype(np.float32), "x is uint8, taken as the real values 0 to 255"
    return _as_float32(x), f"x is {x.dtype}, taken as real values"


def _as_float32(values: npt.NDArray[np.generic]) -> npt.NDArray[np.float32]:
    with np.errstate(over="ignore"):
        return values.astype(np.float32)


def _quantized(real: npt.NDArray[np.float32], wanted: Tensor, name: str, how: str) -> tuple[npt.NDArray[np.int8], tuple[str, ...]]:
    """Real values as codes of a tensor, and the notes that say so."""
    assert wanted.quant is not None
    scale, zero_point = wanted.quant.scale[0], wanted.quant.zero_point
    require_finite(real, name)
    q = np.float64(zero_point) + round_steps(real, scale)
    clipped = int(np.count_nonzero((q < -128) | (q > 127)))
    notes = [f"{how}, quantized with scale {scale:.6g} and zero point {zero_point}"]
    if clipped:
        low, high = (-128 - zero_point) * scale, (127 - zero_point) * scale
        where = "" if name == "x" else f" of {name}"
        notes.append(
            f"{clipped:,} of {q.size:,} values{where} ({100 * clipped / q.size:.2g} %) lie outside {low:.4g} to {high:.4g} and were clipped"
        )
    return np.clip(q, -128, 127).astype(np.int8), tuple(notes)


def require_finite(real: npt.NDArray[np.float32], name: str = "x") -> None:
    """Raise DataError where a value is NaN or infinite."""
    bad = ~np.isfinite(real)
    if bad.any():
        first = tuple(int(i) for i in np.argwhere(bad)[0])
        raise DataError(f"{name} has {int(bad.sum()):,} values that are NaN or infinite, the first at {first}", "clean the data")


def round_steps(real: npt.NDArray[np.float32], scale: float) -> npt.NDArray[np.float64]:
    """real / scale in float32, rounded to the nearest integer, half away from zero."""
    with np.errstate(over="ignore"):
        steps = (real / np.float32(scale)).astype(np.float64)
    rounded: npt.NDArray[np.float64] = np.trunc(steps + np.copysign(0.5, steps))
    return rounded


def read_labels(y: npt.NDArray[np.generic], samples: int) -> npt.NDArray[np.int64]:
    """y as int64, one class number for each of ``samples``. Raises DataError."""
    if y.dtype.kind not in "iu":
        raise DataError(f"y is {y.dtype}: integer class numbers are expected", "convert it with y.astype(numpy.int64)")
    if y.ndim != 1:
        raise DataError(f"y has shape {y.shape}: one class number per sample, shape (N,), is expected", "not one-hot: use y.argmax(axis=1)")
    if len(y) != samples:
        raise DataError(f"x has {samples:,} samples and y has {len(y):,} labels", "they must be equal in number")
    if y.dtype == np.uint64:
        y = np.minimum(y, np.uint64(np.iinfo(np.int64).max))
    return y.astype(np.int64)
