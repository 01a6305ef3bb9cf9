"""One step in both executors: random memory is laid out, the record is run by the C kernel and by the reference, all bytes are compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mcugrad.native import aligned, run_step
from mcugrad.plan.codec import Region, ref
from mcugrad.plan.opsdef import TYPES, StepKind, kinds
from mcugrad.ref.memory import DTYPES, Arrays, Memory, Scalars, bind
from mcugrad.ref.table import KERNELS

Array = npt.NDArray[np.generic]
Rng = np.random.Generator

_READABLE = (Region.ARENA, Region.CONST, Region.STATE, Region.IO)
_WRITABLE = (Region.ARENA, Region.STATE, Region.IO)


@dataclass(frozen=True)
class Layout:
    """A packed record and the memory that it names."""

    kind: StepKind
    values: Mapping[str, float]
    record: bytes
    regions: tuple[Memory, ...]


# ---- random contents, by type -----------------------------------------------------------------------------------------


def bytes_like(rng: Rng, count: int, lo: int = -128) -> Array:
    """int8: uniform, small, or only the ends of the range."""
    flavour = rng.integers(4)
    if flavour == 0:
        return rng.choice(np.array([lo, 127], np.int8), count)
    if flavour == 1:
        return rng.integers(-3, 4, count).astype(np.int8)
    return rng.integers(lo, 128, count).astype(np.int8)


def words(rng: Rng, count: int) -> Array:
    """int32: of a random magnitude, now and then at the ends."""
    if rng.integers(8) == 0:
        return rng.choice(np.array([-(2**31), 2**31 - 1, 0], np.int32), count)
    limit = 2 ** int(rng.integers(1, 31))
    return rng.integers(-limit, limit, count).astype(np.int32)


def requants(rng: Rng, count: int) -> Array:
    out = np.zeros(count, DTYPES["mg_requant"])
    flavour = rng.integers(4)
    if flavour == 0:
        out["mult"] = rng.choice([0, 1, 2**30, 2**31 - 1], count)
        out["shift"] = rng.choice([-31, -30, -1, 0, 1, 29, 30], count)
    else:
        out["mult"] = rng.integers(2**30, 2**31, count)
        out["shift"] = rng.integers(-14, -3, count) if flavour > 1 else rng.integers(-31, 31, count)
    return out


def slopes(rng: Rng, count: int) -> Array:
    """int16: any, or only the ends and zero."""
    ends = rng.choice(np.array([-(2**15), -1, 0, 1, 2**15 - 1], np.int16), count)
    return ends if rng.integers(4) == 0 else rng.integers(-(2**15), 2**15, count).astype(np.int16)


def exponents(rng: Rng, count: int) -> Array:
    """Near 0, at the ends of -16 … 15, now and then outside; the counter at its edges."""
    out = np.zeros(count, DTYPES["mg_exponent"])
    flavour = rng.integers(8)
    values = np.arange(-128, 128) if flavour == 0 else np.array([-16, -15, 14, 15]) if flavour < 3 else np.arange(-2, 3)
    out["r"], out["next"] = rng.choice(values, count), rng.choice(values, count)
    out["count"] = rng.choice([0, 1, 13, 14, 15, 14, 15, 16, 255], count)
    return out


def reals(rng: Rng, count: int) -> Array:
    """float in 0 … 2^64: mostly ordinary scales, some zeros, now and then the ends."""
    out = np.exp2(rng.uniform(-20, 4, count)).astype(np.float32)
    if rng.integers(6) == 0:
        out = rng.choice(np.array([0, 1e-45, 1.17549435e-38, 2.0**-60, 1, 2.0**64], np.float32), count)
    return np.where(rng.random(count) < 0.1, np.float32(0), out)


def args(rng: Rng, label: int = 0) -> Array:
    out = np.zeros(1, DTYPES["mg_args"])
    out["lr"] = rng.choice(np.array([0, 1e-30, 0.003, 0.03, 1, 100], np.float32))
    out["skip"] = rng.choice(np.array([0, 0.1, 0.5, 3], np.float32))
    out["label"] = label
    return out


def randoms(rng: Rng) -> Array:
    out = np.zeros(1, DTYPES["mg_rng"])
    out["seed"], out["tick"] = rng.integers(0, 2**32, 2)
    return out


def content(rng: Rng, ctype: str, count: int) -> Array:
    """Legal random values of a type; raw bytes for what is only written."""
    makers = {
        "int8_t": bytes_like,
        "int32_t": words,
        "mg_requant": requants,
        "mg_exponent": exponents,
        "float": reals,
        "int16_t": slopes,
        "mg_args": lambda g, _: args(g),
        "mg_rng": lambda g, _: randoms(g),
    }
    if ctype in makers:
        return makers[ctype](rng, count)
    return rng.integers(0, 256, count * TYPES[ctype][0], dtype=np.uint8).view(DTYPES[ctype])


# ---- memory -----------------------------------------------------------------------------------------------------------


def lay_out(name: str, scalars: Scalars, seed: int, given: Mapping[str, Array] | None = None) -> Layout:
    """Place every reference of a record at a random legal address between random bytes. ``given`` fixes the contents of some."""
    rng = np.random.default_rng(seed)
    kind = kinds()[name]
    parts: dict[Region, list[Array]] = {region: [] for region in Region}
    used = dict.fromkeys(Region, 0)
    values = dict(scalars)

    def put(region: Region, data: Array) -> int:
        parts[region].append(data.view(np.uint8))
        used[region] += data.nbytes
        return used[region] - data.nbytes

    for field, count in zip(kind.refs, kind.counts(scalars).values(), strict=True):
        if count == 0:
            values[field.name] = 0
            continue
        choices = {"CONST": (Region.CONST,), "IN": _READABLE}.get(field.access, _WRITABLE)
        region = choices[int(rng.integers(len(choices)))]
        alignment = TYPES[field.type][1]
        gap = int(rng.integers(5)) * alignment
        put(region, rng.integers(0, 256, gap + -(used[region] + gap) % alignment, dtype=np.uint8))
        data = given[field.name] if given is not None and field.name in given else content(rng, field.type, count)
        assert data.nbytes == count * TYPES[field.type][0], f"{field.name} has {data.nbytes} bytes"
        values[field.name] = ref(region, put(region, np.ascontiguousarray(data)))
    for region in Region:
        put(region, rng.integers(0, 256, 8, dtype=np.uint8))
    return Layout(kind, values, kind.pack(values), tuple(_join(parts[region]) for region in Region))


def _join(parts: list[Array]) -> Memory:
    data = np.concatenate(parts)
    memory = aligned(len(data))
    memory[:] = data
    return memory


def copied(regions: tuple[Memory, ...]) -> tuple[Memory, ...]:
    return tuple(_join([r]) for r in regions)


# ---- the comparison ---------------------------------------------------------------------------------------------------


def reference(layout: Layout) -> tuple[tuple[Memory, ...], Arrays]:
    """The regions after the reference kernel, and the arrays of the record in them."""
    regions = copied(layout.regions)
    scalars, arrays = bind(layout.kind, layout.values, regions)
    KERNELS[layout.kind.name](scalars, arrays)
    return regions, arrays


def check(name: str, scalars: Scalars, seed: int, given: Mapping[str, Array] | None = None) -> Arrays:
    """Run a step both ways and compare every byte of every region. Returns the reference's arrays after the step."""
    layout = lay_out(name, scalars, seed, given)
    expected, arrays = reference(layout)
    actual = copied(layout.regions)
    code = run_step(layout.record, actual)
    assert code == 0, f"{name}: the library refuses the record: {code}"
    if any(not np.array_equal(a, e) for a, e in zip(actual, expected, strict=True)):
        raise AssertionError(_difference(layout, actual, arrays))
    return arrays


def _difference(layout: Layout, actual: tuple[Memory, ...], expected: Arrays) -> str:
    _, got = bind(layout.kind, layout.values, actual)
    lines = [f"{layout.kind.name} { ({s.name: layout.values[s.name] for s in layout.kind.scalars}) }"]
    for name, want in expected.items():
        wrong = np.nonzero(got[name].view(np.uint8) != want.view(np.uint8))[0]
        if len(wrong):
            at = int(wrong[0]) // want.dtype.itemsize
            lines.append(f"{name}[{at}]: C {got[name][at]}, reference {want[at]}; {len(wrong)} bytes differ")
    return "\n".join(lines) if len(lines) > 1 else lines[0] + "\na byte outside of every OUT and UPD reference was written"
