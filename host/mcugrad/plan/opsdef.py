"""firmware/ops.def read by Python: the record of every step kind, its codec and its checks.

One fact, one place: this file holds the grammar of the table, never a step kind.
"""

from __future__ import annotations

import functools
import re
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import CodeType

from mcugrad.errors import PlanError
from mcugrad.paths import firmware_dir

SCALARS: Mapping[str, tuple[str, int]] = {
    "U8": ("B", 1),
    "S8": ("b", 1),
    "U16": ("H", 2),
    "S16": ("h", 2),
    "U32": ("I", 4),
    "S32": ("i", 4),
    "F32": ("f", 4),
}
"""Scalar macro -> struct format and size (= alignment) in bytes."""

TYPES: Mapping[str, tuple[int, int]] = {
    "int8_t": (1, 1),
    "uint8_t": (1, 1),
    "int16_t": (2, 2),
    "uint16_t": (2, 2),
    "int32_t": (4, 4),
    "float": (4, 4),
    "mg_requant": (8, 4),
    "mg_exponent": (4, 1),
    "mg_rng": (8, 4),
    "mg_args": (12, 4),
    "mg_result": (16, 4),
}
"""Element type of a reference -> size and alignment in bytes (SPEC.md section 1)."""

ACCESS = ("IN", "CONST", "OUT", "UPD")


@dataclass(frozen=True, slots=True)
class Scalar:
    name: str
    type: str
    offset: int


@dataclass(frozen=True, slots=True)
class Ref:
    name: str
    access: str
    type: str
    offset: int
    count: CodeType
    text: str

    @property
    def writes(self) -> bool:
        return self.access in ("OUT", "UPD")


@dataclass(frozen=True, slots=True)
class StepKind:
    """One row of ops.def. ``size`` is the bytes of a whole record, head included."""

    name: str
    code: int
    scalars: tuple[Scalar, ...]
    refs: tuple[Ref, ...]
    needs: tuple[tuple[CodeType, str], ...]
    size: int

    def counts(self, scalars: Mapping[str, float]) -> dict[str, int]:
        """Elements behind every reference, for these scalars."""
        env = dict(scalars)
        return {r.name: int(eval(r.count, {"__builtins__": {}}, env)) for r in self.refs}

    def nbytes(self, scalars: Mapping[str, float]) -> dict[str, int]:
        """Bytes behind every reference, for these scalars."""
        return {r.name: n * TYPES[r.type][0] for r, n in zip(self.refs, self.counts(scalars).values(), strict=True)}

    def pack(self, values: Mapping[str, float]) -> bytes:
        """Encode one record. ``values`` holds every scalar and every reference (as u32), and nothing else.

        Raises PlanError where a name is missing or unknown, a value out of range or a NEED false.
        """
        names = {s.name for s in self.scalars} | {r.name for r in self.refs}
        if set(values) != names:
            raise PlanError(f"step {self.name}: fields {sorted(set(values) ^ names)} are missing or unknown")
        for need, text in self.needs:
            if not eval(need, {"__builtins__": {}}, dict(values)):
                raise PlanError(f"step {self.name}: {text} does not hold for {dict(values)}")
        record = bytearray(self.size)
        struct.pack_into("<HH", record, 0, self.code, self.size)
        for s in self.scalars:
            try:
                struct.pack_into("<" + SCALARS[s.type][0], record, s.offset, values[s.name])
            except struct.error:
                raise PlanError(f"step {self.name}: {s.name} = {values[s.name]} does not fit {s.type}") from None
        for r in self.refs:
            if not 0 <= values[r.name] < 1 << 32:
                raise PlanError(f"step {self.name}: reference {r.name} = {values[r.name]} does not fit 32 bits")
            struct.pack_into("<I", record, r.offset, int(values[r.name]))
        return bytes(record)

    def unpack(self, record: bytes) -> dict[str, float]:
        """Decode one record into its scalars and references."""
        out: dict[str, float] = {}
        for s in self.scalars:
            (out[s.name],) = struct.unpack_from("<" + SCALARS[s.type][0], record, s.offset)
        for r in self.refs:
            (out[r.name],) = struct.unpack_from("<I", record, r.offset)
        return out


def _canonical(text: str) -> str:
    return " ".join(re.sub(r"//[^\n]*", "", text).split())


def _expression(text: str) -> CodeType:
    return compile(text.replace("&&", " and ").replace("||", " or "), "ops.def", "eval")


def _macros(body: str) -> Iterator[tuple[str, str]]:
    """(name, text between its parentheses) of every macro call; parentheses inside may nest."""
    for call in re.finditer(r"(\w+)\(", body):
        if body.count("(", 0, call.start()) != body.count(")", 0, call.start()):
            continue
        depth, end = 1, call.end()
        while depth:
            depth += {"(": 1, ")": -1}.get(body[end], 0)
            end += 1
        yield call[1], body[call.end() : end - 1]


def _split_args(text: str) -> list[str]:
    return [a.strip() for a in text.split(",", 2)]


def parse(text: str) -> dict[str, StepKind]:
    """Parse the text of an ops.def into its step kinds, by name."""
    kinds: dict[str, StepKind] = {}
    for name, code, body in re.findall(r"STEP\((\w+), (\w+)\)(.*?)END\(\1\)", _canonical(text)):
        scalars: list[Scalar] = []
        refs: list[Ref] = []
        needs: list[tuple[CodeType, str]] = []
        offset = 4
        for macro, args in _macros(body):
            if macro in SCALARS:
                size = SCALARS[macro][1]
                offset = -(-offset // size) * size
                scalars.append(Scalar(args, macro, offset))
                offset += size
            elif macro == "NEED":
                needs.append((_expression(args), args))
            elif macro in ACCESS:
                ctype, field, count = _split_args(args)
                offset = -(-offset // 4) * 4
                refs.append(Ref(field, macro, ctype, offset, _expression(count), count))
                offset += 4
            else:
                raise PlanError(f"ops.def: {name} uses the unknown macro {macro}")
        kinds[name] = StepKind(name, int(code, 16), tuple(scalars), tuple(refs), tuple(needs), -(-offset // 4) * 4)
    return kinds


@functools.cache
def _source() -> str:
    return (firmware_dir() / "ops.def").read_text(encoding="utf-8")


@functools.cache
def kinds() -> dict[str, StepKind]:
    """All step kinds by name."""
    return parse(_source())


@functools.cache
def by_code() -> dict[int, StepKind]:
    """All step kinds by code."""
    return {k.code: k for k in kinds().values()}


@functools.cache
def ops_hash() -> int:
    """CRC-32 of ops.def without comments and superfluous white space: firmware and host must agree on it."""
    return zlib.crc32(_canonical(_source()).encode())
