"""Frames: COBS and CRC-32, the same bytes as firmware/link/frame.c (SPEC.md section 4.1)."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

OVERHEAD_BYTES = 6
"""type, seq and CRC-32 around a body."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame without its CRC. ``type`` and ``seq`` are 0 … 255."""

    type: int
    seq: int
    body: bytes


def cobs_encode(data: bytes) -> bytes:
    """Encode ``data`` so that no byte is zero, without the delimiter."""
    out = bytearray()
    at = 0
    while True:
        end = data.find(0, at, at + 254)
        if end < 0:
            end = min(at + 254, len(data))
        out.append(end - at + 1)
        out += data[at:end]
        if end == len(data):
            return bytes(out)
        at = end + (1 if end - at < 254 else 0)


def cobs_decode(code: bytes) -> bytes | None:
    """Decode what stood between two delimiters; None where it is no COBS."""
    out = bytearray()
    at = 0
    while at < len(code):
        block = code[at]
        end = at + block
        if block == 0 or end > len(code) or 0 in code[at:end]:
            return None
        out += code[at + 1 : end]
        at = end
        if block < 255 and at < len(code):
            out.append(0)
    return bytes(out)


def encode(frame: Frame) -> bytes:
    """All bytes of a frame on the wire, delimiter last."""
    data = bytes((frame.type, frame.seq)) + frame.body
    return cobs_encode(data + zlib.crc32(data).to_bytes(4, "little")) + b"\0"


def encoded_bytes(frame: Frame) -> int:
    """Length of ``encode(frame)``."""
    return len(encode(frame))


def decode(code: bytes) -> Frame | None:
    """The frame between two delimiters; None where its code, length or CRC is wrong."""
    data = cobs_decode(code)
    if data is None or len(data) < OVERHEAD_BYTES or zlib.crc32(data[:-4]) != int.from_bytes(data[-4:], "little"):
        return None
    return Frame(data[0], data[1], data[2:-4])


class Decoder:
    """Splits a byte stream into frames. Bytes that are no frame are dropped and counted in ``damaged``."""

    def __init__(self, capacity_bytes: int = 1 << 16) -> None:
        """``capacity_bytes``: longest encoded frame; what is longer is dropped up to its delimiter."""
        self._capacity = capacity_bytes
        self._pending = bytearray()
        self._oversize = False
        self.damaged = 0

    def push(self, data: bytes) -> list[Frame]:
        """Take more bytes; return the frames that they complete."""
        frames: list[Frame] = []
        *ends, rest = data.split(b"\0")
        for part in ends:
            self._keep(part)
            frames += self._finish()
        self._keep(rest)
        return frames

    def _keep(self, part: bytes) -> None:
        self._oversize = self._oversize or len(self._pending) + len(part) > self._capacity
        if not self._oversize:
            self._pending += part

    def _finish(self) -> list[Frame]:
        code, oversize = bytes(self._pending), self._oversize
        self._pending.clear()
        self._oversize = False
        if not code and not oversize:
            return []
        frame = None if oversize else decode(code)
        self.damaged += frame is None
        return [] if frame is None else [frame]
