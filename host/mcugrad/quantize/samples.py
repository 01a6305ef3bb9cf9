"""Data set files for a float model: .npz with x (N, …), y (N,) where there are labels -> real numbers, checked.

float x is taken as it is; uint8 x as 0 … 255, or as x / 255 for a model that was trained on 0 … 1. int8 x is refused: its scale is lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mcugrad.data import HINT_NPZ, read_arrays, read_labels, require_finite
from mcugrad.errors import DataError
from mcugrad.graph import Graph


@dataclass(frozen=True, slots=True, eq=False)
class RealSet:
    """x float32 (N, *the model's input shape), y int64 (N,) or None where there are no class numbers."""

    x: npt.NDArray[np.float32]
    y: npt.NDArray[np.int64] | None
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.x)


def load_real(path: Path, graph: Graph, *, unit: bool = False) -> RealSet:
    """Read an .npz file for a float model with one input. ``unit``: uint8 x means x / 255. Raises DataError."""
    if len(graph.inputs) != 1:
        names = ", ".join(graph.tensors[i].name for i in graph.inputs)
        raise DataError(
            f"the model has {len(graph.inputs)} inputs ({names}), an .npz file is for one", "call mcugrad.quantize.quantize_graph"
        )
    arrays = read_arrays(path)
    try:
        if "x" not in arrays:
            raise DataError(f"no array x, only {', '.join(sorted(arrays)) or 'nothing'}", HINT_NPZ)
        x, notes = _real(arrays["x"], graph.tensors[graph.input].shape, unit=unit)
        y, more = _labels(arrays.get("y"), len(x))
    except DataError as error:
        raise DataError(f"{path.name}: {error.text}", error.hint) from None
    return RealSet(x, y, (*notes, *more))


def chosen(data: RealSet, count: int) -> RealSet:
    """``count`` samples in random order, the same at every call, or all: files are often sorted by class."""
    if count >= len(data):
        return data
    order = np.random.default_rng(1).permutation(len(data))[:count]
    return RealSet(data.x[order], None if data.y is None else data.y[order], data.notes)


def _real(x: npt.NDArray[np.generic], shape: tuple[int, ...], *, unit: bool) -> tuple[npt.NDArray[np.float32], tuple[str, ...]]:
    if x.dtype != np.uint8 and x.dtype.kind != "f":
        raise DataError(f"x is {x.dtype}: a float model needs float values, or uint8", "save the samples before they were quantized")
    if x.ndim == 0 or len(x) == 0:
        raise DataError(f"x of shape {x.shape} has no samples", HINT_NPZ)
    if [d for d in x.shape[1:] if d != 1] != [d for d in shape if d != 1]:
        raise DataError(
            f"x has samples of shape {x.shape[1:]}, the model's input is {shape}", "reshape x, or preprocess it as for the model"
        )
    with np.errstate(over="ignore"):
        real = x.astype(np.float32).reshape(len(x), *shape)
    require_finite(real)
    if x.dtype != np.uint8:
        return real, ()
    if unit:
        return real / np.float32(255), ("x is uint8, taken as x / 255",)
    return real, ("x is uint8, taken as the real values 0 to 255 (--unit for a model that was trained on x / 255)",)


def _labels(y: npt.NDArray[np.generic] | None, samples: int) -> tuple[npt.NDArray[np.int64] | None, tuple[str, ...]]:
    if y is None:
        return None, ()
    if y.dtype.kind not in "iu":
        return None, (f"y is {y.dtype}, no class numbers: outputs are compared, not accuracies",)
    return read_labels(y, samples), ()
