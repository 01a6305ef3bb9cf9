"""The four regions, and the typed arrays that a record's references name in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mcugrad.errors import PlanError
from mcugrad.plan.codec import offset_of, region_of
from mcugrad.plan.opsdef import TYPES, StepKind
from mcugrad.ref.fixed import Array

DTYPES: Mapping[str, np.dtype[np.generic]] = {
    "int8_t": np.dtype("<i1"),
    "uint8_t": np.dtype("<u1"),
    "int16_t": np.dtype("<i2"),
    "uint16_t": np.dtype("<u2"),
    "int32_t": np.dtype("<i4"),
    "float": np.dtype("<f4"),
    "mg_requant": np.dtype([("mult", "<i4"), ("shift", "<i4")]),
    "mg_exponent": np.dtype([("r", "<i1"), ("next", "<i1"), ("count", "<u1"), ("zero", "<u1")]),
    "mg_rng": np.dtype([("seed", "<u4"), ("tick", "<u4")]),
    "mg_args": np.dtype([("lr", "<f4"), ("skip", "<f4"), ("label", "<u2"), ("zero", "<u2")]),
    "mg_result": np.dtype([("loss", "<f4"), ("peak", "<f4"), ("argmax", "<i4"), ("skipped", "<u4")]),
}
"""Element types of ops.def as NumPy sees them."""

Memory = npt.NDArray[np.uint8]
Scalars = Mapping[str, Any]
"""The scalars of a record: int, and for an F32 a float that a float32 holds exactly."""
Arrays = Mapping[str, Array]
Kernel = Callable[[Scalars, Arrays], Array | None]
"""A kernel reads scalars and arrays, writes the OUT and UPD arrays in place, and returns the int32 gradient if it makes one."""


def view(region: Memory, offset: int, ctype: str, count: int) -> Array:
    """``count`` elements of ``ctype`` at ``offset``, sharing the region's memory."""
    return region[offset : offset + count * TYPES[ctype][0]].view(DTYPES[ctype])


def bind(kind: StepKind, values: Mapping[str, float], regions: Sequence[Memory]) -> tuple[Scalars, Arrays]:
    """The scalars of a record, and a flat array for each of its references (empty where unused).

    ``regions`` are those of codec.Region, in order. Raises PlanError where a reference leaves its region.
    """
    scalars = {s.name: float(values[s.name]) if s.type == "F32" else int(values[s.name]) for s in kind.scalars}
    arrays: dict[str, Array] = {}
    for ref, count in zip(kind.refs, kind.counts(scalars).values(), strict=True):
        region, offset = region_of(int(values[ref.name])), offset_of(int(values[ref.name]))
        end, limit = offset + count * TYPES[ref.type][0], len(regions[region])
        if end > limit:
            raise PlanError(f"step {kind.name}: {ref.name} ends at byte {end} of {region.name}, which has {limit}")
        arrays[ref.name] = view(regions[region], offset, ref.type, count)
    return scalars, arrays
