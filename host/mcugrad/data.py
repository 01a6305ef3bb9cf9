"""Data set files: .npz with x (N, …) and y (N,) -> DataSet, int8 and checked.

How x becomes int8, with s and z the scale and zero point of the model's input:

- int8: taken as it is.
- float: q = z + round(x / s), half away from zero, in float32 as TensorFlow Lite's QUANTIZE does it, then clipped to -128 … 127.
- uint8: the value itself, 0 … 255, is the real number; but where s is about 1/255 the model was trained on 0 … 1, and x / 255 is the real
  number. Then as float.

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
from mcugrad.graph.edit import input_of
from mcugrad.graph.types import Graph, Tensor

UNIT_SCALE = 1 / 255
UNIT_SCALE_TOLERANCE = 0.02
HINT_NPZ = "save it with numpy.savez(path, x=…, y=…)"


@dataclass(frozen=True, slots=True, eq=False)
class DataSet:
    """x int8 (N, *the model's input shape without batch), y int64 (N,) or None where there are no labels."""

    x: npt.NDArray[np.int8]
    y: npt.NDArray[np.int64] | None
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.x)


def load(path: str | Path, graph: Graph) -> DataSet:
    """Read an .npz file with x and y (other arrays are ignored) for a model. Raises DataError."""
    path = Path(path)
    arrays = read_arrays(path)
    try:
        for name in ("x", "y"):
            if name not in arrays:
                raise DataError(f"no array {name}, only {', '.join(sorted(arrays)) or 'nothing'}", HINT_NPZ)
        samples, notes = _samples(arrays["x"], input_of(graph))
        labels = read_labels(arrays["y"], len(samples))
    except DataError as error:
        raise DataError(f"{path.name}: {error.text}", error.hint) from None
    return DataSet(samples, labels, notes)


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


def _samples(x: npt.NDArray[np.generic], target: Tensor) -> tuple[npt.NDArray[np.int8], tuple[str, ...]]:
    """x in any accepted dtype -> int8 in the shape of the model's input, and notes."""
    if x.dtype not in (np.int8, np.uint8) and x.dtype.kind != "f":
        raise DataError(f"x is {x.dtype}: float, uint8 or int8 is expected", "convert it with x.astype(numpy.float32)")
    if x.ndim == 0 or len(x) == 0:
        raise DataError(f"x of shape {x.shape} has no samples", HINT_NPZ)
    sample, wanted = x.shape[1:], target.shape[1:]
    if [d for d in sample if d != 1] != [d for d in wanted if d != 1]:
        raise DataError(f"x has samples of shape {sample}, the model's input is {wanted}", "reshape x, or preprocess it as for the model")
    q, notes = _int8(x, target)
    return q.reshape(len(x), *wanted), notes


def _int8(x: npt.NDArray[np.generic], target: Tensor) -> tuple[npt.NDArray[np.int8], tuple[str, ...]]:
    if x.dtype == np.int8:
        return x.astype(np.int8, copy=False), ()
    assert target.quant is not None
    scale, zero_point = target.quant.scale[0], target.quant.zero_point
    with np.errstate(over="ignore"):
        real = x.astype(np.float32)
    how = f"x is {x.dtype}, taken as real values"
    if x.dtype == np.uint8 and math.isclose(scale, UNIT_SCALE, rel_tol=UNIT_SCALE_TOLERANCE):
        real, how = real / np.float32(255), "x is uint8, taken as x / 255 (the model's input is 0 to 1)"
    elif x.dtype == np.uint8:
        how = "x is uint8, taken as the real values 0 to 255"
    require_finite(real)
    q = np.float64(zero_point) + round_steps(real, scale)
    clipped = int(np.count_nonzero((q < -128) | (q > 127)))
    notes = [f"{how}, quantized with scale {scale:.6g} and zero point {zero_point}"]
    if clipped:
        low, high = (-128 - zero_point) * scale, (127 - zero_point) * scale
        notes.append(
            f"{clipped:,} of {q.size:,} values ({100 * clipped / q.size:.2g} %) lie outside {low:.4g} to {high:.4g} and were clipped"
        )
    return np.clip(q, -128, 127).astype(np.int8), tuple(notes)


def require_finite(real: npt.NDArray[np.float32]) -> None:
    """Raise DataError where a value is NaN or infinite."""
    bad = ~np.isfinite(real)
    if bad.any():
        first = tuple(int(i) for i in np.argwhere(bad)[0])
        raise DataError(f"x has {int(bad.sum()):,} values that are NaN or infinite, the first at {first}", "clean the data")


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
