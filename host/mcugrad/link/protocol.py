"""What the frames carry: command types, bodies, replies (SPEC.md section 4.3)."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from mcugrad.errors import DataError, LinkError, McugradError
from mcugrad.link.texts import device_error

PROTOCOL = 2
REPLY = 0x80
ERR = 0xFE
NAK = 0xFF
DATA_ALIGN = 32
"""Offsets of LOAD_DATA are multiples of this: flash is programmed in such units."""
START_BAUD = 115_200
"""Rate of every line after reset."""
LOST_BYTES = 4096
"""Received at another rate without a good frame among them, the device goes back to START_BAUD."""


class Command(IntEnum):
    """Frame types that the host sends."""

    HELLO = 0x01
    SYNC = 0x02
    BAUD = 0x03
    LOAD_BEGIN = 0x10
    LOAD_DATA = 0x11
    LOAD_END = 0x12
    SAMPLE = 0x20
    TRAIN = 0x21
    PREDICT = 0x22
    COMMIT = 0x23
    START = 0x24
    RESULT = 0x25
    READ = 0x30
    WRITE_STATE = 0x31
    RESET = 0x32
    TRACE = 0x33
    STATS = 0x34
    SAVE = 0x38
    RESTORE = 0x39
    CHECKPOINTS = 0x3A
    RESTART = 0x3B
    BYE = 0x3F


class Region(IntEnum):
    """What READ can see: the regions of a plan, and the CRCs of the last traced run."""

    ARENA = 0
    CONST = 1
    STATE = 2
    IO = 3
    TRACE = 4


class TickUnit(IntEnum):
    """What the device's stopwatch counts."""

    NONE = 0
    INSTRUCTIONS = 1
    CYCLES = 2
    MICROSECONDS = 3


@dataclass(frozen=True, slots=True)
class Caps:
    """What a device is. ``kernels`` holds the step codes it can run; ``plan_crc`` is 0 where no plan is loaded.

    ``checkpoint_bytes`` is the size of each of its two checkpoint slots, 0 where it has none. ``ahead_bytes``: room for the sample that
    travels while the loaded plan computes, 0: none. ``state_id`` is the nonce of the session that has last set STATE as a whole,
    ``changes`` counts the training steps and commits since then.
    """

    protocol: int
    plan_version: int
    ops_hash: int
    kernels: frozenset[int]
    pool_bytes: int
    slot_bytes: int
    max_body_bytes: int
    window_frames: int
    rx_window_bytes: int
    tick_unit: TickUnit
    tick_mul: int
    tick_div: int
    plan_crc: int
    checkpoint_bytes: int
    ahead_bytes: int
    state_id: int
    changes: int
    board: str
    firmware: str

    def units(self, ticks: int) -> int | None:
        """Ticks in ``tick_unit``; None where the board has no timer that moves."""
        return None if self.tick_unit is TickUnit.NONE else ticks * self.tick_mul // self.tick_div


@dataclass(frozen=True, slots=True)
class Loaded:
    """A plan that the device has accepted. ``ahead_bytes``: see Caps."""

    plan_crc: int
    arena_bytes: int
    state_bytes: int
    io_bytes: int
    ahead_bytes: int = 0


@dataclass(frozen=True, slots=True)
class TrainReply:
    """mg_result of one sample, and the ticks that mg_train took."""

    loss: float
    peak: float
    argmax: int
    skipped: bool
    ticks: int


@dataclass(frozen=True, slots=True)
class PredictReply:
    """First maximum of the output, the whole output (int8), and the ticks that mg_predict took."""

    argmax: int
    output: npt.NDArray[np.int8]
    ticks: int


@dataclass(frozen=True, slots=True)
class Stats:
    """Memory as measured on the device; 0 where it cannot be measured there."""

    stack_peak_bytes: int
    stack_reserved_bytes: int
    arena_touched_bytes: int
    pool_used_bytes: int
    static_ram_bytes: int
    firmware_bytes: int
    rx_overruns: int
    damaged_frames: int


HEAD_BYTES = 32
"""Before STATE in a checkpoint slot (SPEC.md section 3.8)."""


@dataclass(frozen=True, slots=True)
class DeviceCheckpoint:
    """A whole checkpoint in a slot of a device. ``sequence`` counts the checkpoints of this device, over all plans."""

    sequence: int
    plan_crc: int
    model_hash: int
    state_bytes: int


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """What a device keeps: ``slots`` holds None where there is no whole checkpoint.

    ``slot_bytes`` is 0 where the device has no storage; ``restored`` is the sequence of the checkpoint that STATE came from when the
    device started, 0 for none.
    """

    slot_bytes: int
    restored: int
    slots: tuple[DeviceCheckpoint | None, DeviceCheckpoint | None]

    @property
    def newest(self) -> DeviceCheckpoint | None:
        """The one that RESTORE would take."""
        first, second = self.slots
        if first is None or second is None:
            return first or second
        return second if 0 < (second.sequence - first.sequence) & 0xFFFFFFFF < 1 << 31 else first

    @property
    def erases(self) -> int:
        """Erases of each slot so far: every checkpoint erases one of the two. Checkpoints cut short by a power cut are not counted."""
        return 0 if self.newest is None else (self.newest.sequence + 1) // 2


PREDICT_HEAD = struct.Struct("<iIIxxxxQ")
"""argmax, bytes of the output, its offset in IO, ticks; the output follows where it is short."""

OUTPUT_BYTES = 64
"""The longest output that a PREDICT reply carries."""

Sample = tuple[bytes | npt.NDArray[np.int8], int, float]
"""One training sample: the model's input (int8), label, learning rate. For a regression loss the target
(int8) follows the input in the same bytes or array, and the label is 0."""


def pack_train(label: int, lr: float, skip: float) -> bytes:
    """Body of TRAIN. Raises DataError where the label cannot be sent."""
    if not 0 <= label <= 0xFFFF:
        raise DataError(f"label {label} does not fit 16 bits", "labels are 0 … classes - 1")
    return struct.pack("<Hxxff", label, lr, skip)


def parse_train(body: bytes) -> TrainReply:
    """Body of a TRAIN reply."""
    loss, peak, argmax, skipped, ticks = struct.unpack("<ffiIQ", sized(body, 24))
    return TrainReply(loss, peak, argmax, bool(skipped), ticks)


def parse_predict(body: bytes) -> PredictReply:
    """Body of a PREDICT reply; ``output`` is empty where it was too long to come along."""
    argmax, _size, _offset, ticks = PREDICT_HEAD.unpack(sized(body[: PREDICT_HEAD.size], PREDICT_HEAD.size))
    return PredictReply(argmax, np.frombuffer(body, np.int8, offset=PREDICT_HEAD.size), ticks)


def parse_checkpoints(body: bytes) -> Checkpoints:
    """Body of a CHECKPOINTS reply."""
    slot_bytes, restored, *rest = struct.unpack("<12I", sized(body, 48))
    first, second = (DeviceCheckpoint(*rest[k + 1 : k + 5]) if rest[k] else None for k in (0, 5))
    return Checkpoints(slot_bytes, restored, (first, second))


def parse_caps(body: bytes) -> Caps:
    """Body of a HELLO reply."""
    fixed = struct.Struct("<IHHI32sIIHBBIIIIIIII")
    if len(body) < fixed.size:
        raise LinkError(f"a HELLO reply has {len(body)} bytes, not {fixed.size} or more", "build and flash the firmware again")
    (_nonce, protocol, plan_version, ops_hash, bits, pool, slot, body_bytes, frames, unit, window, *rest) = fixed.unpack_from(body)
    kernels = frozenset(code for code in range(256) if bits[code >> 3] >> (code & 7) & 1)
    mul, div, crc, store, ahead, state_id, changes = rest
    board, firmware = _parse_strings(body[fixed.size :])
    return Caps(
        *(protocol, plan_version, ops_hash, kernels, pool, slot, body_bytes, frames, window, TickUnit(unit)),
        *(mul, div, crc, store, ahead, state_id, changes, board, firmware),
    )


def _parse_strings(data: bytes) -> tuple[str, str]:
    first = data[1 : 1 + data[0]]
    rest = data[1 + len(first) :]
    return first.decode("ascii", "replace"), rest[1 : 1 + rest[0]].decode("ascii", "replace")


def sized(body: bytes, n: int) -> bytes:
    """``body``, which must have ``n`` bytes. Raises LinkError."""
    if len(body) != n:
        raise LinkError(f"a reply has {len(body)} bytes, not {n}", "host and firmware are of different versions: build and flash again")
    return body


def error_of(body: bytes) -> McugradError:
    """The exception for the body of an ERR reply."""
    code, step, value, limit = struct.unpack("<iiII", sized(body, 16))
    return device_error(code, step, value, limit)
