"""The plan's bytes: encode and decode (SPEC.md sections 1 and 2)."""

from __future__ import annotations

import enum
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from mcugrad.errors import PlanError
from mcugrad.plan import opsdef
from mcugrad.plan.opsdef import StepKind

MAGIC = 0x4C50474D
VERSION = 2
HEADER_BYTES = 116
BLOB_ALIGN = 16
OFFSET_BITS = 30


class Region(enum.IntEnum):
    """A piece of memory that a plan may name."""

    ARENA = 0
    CONST = 1
    STATE = 2
    IO = 3


def ref(region: Region, offset: int) -> int:
    """The u32 that names ``offset`` bytes into ``region``."""
    if not 0 <= offset < 1 << OFFSET_BITS:
        raise PlanError(f"offset {offset} in {region.name} does not fit {OFFSET_BITS} bits")
    return int(region) << OFFSET_BITS | offset


def region_of(reference: int) -> Region:
    return Region(reference >> OFFSET_BITS)


def offset_of(reference: int) -> int:
    return reference & (1 << OFFSET_BITS) - 1


@dataclass(frozen=True, slots=True)
class Header:
    """SPEC.md section 1, field by field. Sizes in bytes."""

    magic: int
    version: int
    header_bytes: int
    ops_hash: int
    plan_bytes: int
    plan_crc: int
    model_hash: int
    arena_bytes: int
    state_bytes: int
    io_bytes: int
    const_offset: int
    const_bytes: int
    init_offset: int
    steps_offset: int
    forward_steps: int
    eval_steps: int
    loss_steps: int
    backward_steps: int
    commit_steps: int
    steps_bytes: int
    sample: int
    sample_bytes: int
    args: int
    result: int
    output: int
    output_bytes: int
    classes: int
    rng: int
    target: int
    target_bytes: int


_HEADER = struct.Struct("<IHH27I")
assert _HEADER.size == HEADER_BYTES and len(fields(Header)) == 30


@dataclass(frozen=True, slots=True)
class Interface:
    """Where the host and the application find things, and how large the regions are."""

    arena_bytes: int
    state_bytes: int
    io_bytes: int
    sample: int
    sample_bytes: int
    args: int
    result: int
    output: int
    output_bytes: int
    classes: int
    rng: int
    target: int
    target_bytes: int
    model_hash: int


@dataclass(frozen=True, slots=True)
class DecodedStep:
    """One record: scalars and references (u32) by name."""

    kind: StepKind
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class DecodedPlan:
    """A plan taken apart. ``segments`` counts the steps of forward, eval, loss, backward and commit."""

    header: Header
    steps: tuple[DecodedStep, ...]
    segments: tuple[int, int, int, int, int]
    const: bytes
    init: bytes


def _align(n: int) -> int:
    return -(-n // BLOB_ALIGN) * BLOB_ALIGN


def encode(interface: Interface, segments: Sequence[Sequence[bytes]], const: bytes, init: bytes) -> bytes:
    """Put a plan together from the packed records of its five segments, the CONST region and the initial STATE."""
    records = b"".join(record for segment in segments for record in segment)
    const_offset = _align(HEADER_BYTES + len(records))
    init_offset = _align(const_offset + len(const))
    plan_bytes = _align(init_offset + len(init))
    head = Header(
        magic=MAGIC,
        version=VERSION,
        header_bytes=HEADER_BYTES,
        ops_hash=opsdef.ops_hash(),
        plan_bytes=plan_bytes,
        plan_crc=0,
        model_hash=interface.model_hash,
        arena_bytes=interface.arena_bytes,
        state_bytes=interface.state_bytes,
        io_bytes=interface.io_bytes,
        const_offset=const_offset,
        const_bytes=len(const),
        init_offset=init_offset,
        steps_offset=HEADER_BYTES,
        forward_steps=len(segments[0]),
        eval_steps=len(segments[1]),
        loss_steps=len(segments[2]),
        backward_steps=len(segments[3]),
        commit_steps=len(segments[4]),
        steps_bytes=len(records),
        sample=interface.sample,
        sample_bytes=interface.sample_bytes,
        args=interface.args,
        result=interface.result,
        output=interface.output,
        output_bytes=interface.output_bytes,
        classes=interface.classes,
        rng=interface.rng,
        target=interface.target,
        target_bytes=interface.target_bytes,
    )
    plan = bytearray(plan_bytes)
    _HEADER.pack_into(plan, 0, *(getattr(head, f.name) for f in fields(Header)))
    plan[HEADER_BYTES : HEADER_BYTES + len(records)] = records
    plan[const_offset : const_offset + len(const)] = const
    plan[init_offset : init_offset + len(init)] = init
    struct.pack_into("<I", plan, 16, zlib.crc32(plan[20:]))
    return bytes(plan)


def decode(plan: bytes) -> DecodedPlan:
    """Take a plan apart. Raises PlanError where it is not one of this version and this ops.def, or a part leaves the block."""
    if len(plan) < HEADER_BYTES:
        raise PlanError(f"plan has {len(plan)} bytes, the header alone has {HEADER_BYTES}")
    head = Header(*_HEADER.unpack_from(plan))
    if head.magic != MAGIC or head.version != VERSION or head.header_bytes != HEADER_BYTES:
        raise PlanError(f"not a plan of version {VERSION}: magic {head.magic:#010x}, version {head.version}")
    if head.ops_hash != opsdef.ops_hash():
        raise PlanError(f"plan is for ops.def {head.ops_hash:#010x}, this is {opsdef.ops_hash():#010x}", "make the plan again")
    if head.plan_bytes != len(plan) or zlib.crc32(plan[20:]) != head.plan_crc:
        raise PlanError(f"plan is damaged: {len(plan)} bytes of {head.plan_bytes}, or its CRC-32 differs", "make the plan again")
    steps = _decode_steps(_part(plan, "steps", head.steps_offset, head.steps_bytes))
    segments = (head.forward_steps, head.eval_steps, head.loss_steps, head.backward_steps, head.commit_steps)
    if sum(segments) != len(steps):
        raise PlanError(f"plan has {len(steps)} steps, its segments count {sum(segments)}")
    const = _part(plan, "CONST", head.const_offset, head.const_bytes)
    return DecodedPlan(head, steps, segments, const, _part(plan, "the initial STATE", head.init_offset, head.state_bytes))


def _part(plan: bytes, what: str, offset: int, size: int) -> bytes:
    if offset < HEADER_BYTES or offset + size > len(plan):
        raise PlanError(f"{what} is bytes {offset} to {offset + size} of a plan of {len(plan)} bytes", "make the plan again")
    return plan[offset : offset + size]


def _decode_steps(records: bytes) -> tuple[DecodedStep, ...]:
    steps: list[DecodedStep] = []
    offset = 0
    while offset < len(records):
        code, size = struct.unpack_from("<HH", records.ljust(offset + 4, b"\0"), offset)
        kind = opsdef.by_code().get(code)
        if kind is None or size != kind.size or offset + size > len(records):
            raise PlanError(f"step {len(steps)}: code {code:#x} of {size} bytes is not in ops.def")
        steps.append(DecodedStep(kind, kind.unpack(records[offset : offset + size])))
        offset += size
    return tuple(steps)
