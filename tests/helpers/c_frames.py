"""firmware/link/frame.c as a library."""

from __future__ import annotations

import ctypes
from pathlib import Path


class CFrames:
    """firmware/link/frame.c through ctypes."""

    class Decoder(ctypes.Structure):
        _fields_ = (
            ("buf", ctypes.c_void_p),
            ("capacity", ctypes.c_uint32),
            ("used", ctypes.c_uint32),
            ("code", ctypes.c_uint8),
            ("left", ctypes.c_uint8),
            ("state", ctypes.c_uint8),
        )

    WRITE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint8), ctypes.c_uint32)

    def __init__(self, path: Path) -> None:
        self._lib = ctypes.CDLL(str(path))

    def encode(self, data: bytes) -> bytes:
        """The bytes on the wire for type, seq and body."""
        out = bytearray()
        buf = (ctypes.c_uint8 * (len(data) + 4)).from_buffer_copy(data + b"\xee" * 4)
        write = self.WRITE(lambda _port, p, n: out.extend(p[:n]))
        self._lib.mg_frame_send(buf, len(data), write, None)
        return bytes(out)

    def decode_over(self, wire: bytes, at: int, stale: bytes) -> int:
        """Result of the delimiter of ``wire``, one frame, where by then the memory from ``at`` holds ``stale`` instead of what came."""
        buf = (ctypes.c_uint8 * 2048)()
        decoder = self.Decoder()
        self._lib.mg_frame_decoder_init(ctypes.byref(decoder), buf, 2048)
        for byte in wire[:-1]:
            assert self._lib.mg_frame_push(ctypes.byref(decoder), byte) == 0
        ctypes.memmove(ctypes.addressof(buf) + at, stale, len(stale))
        return int(self._lib.mg_frame_push(ctypes.byref(decoder), wire[-1]))

    def decode(self, wire: bytes, capacity: int) -> tuple[list[bytes], list[int]]:
        """Good frames without CRC, and the negative results."""
        buf = (ctypes.c_uint8 * (capacity + 8))(*(b"\xee" * (capacity + 8)))
        decoder = self.Decoder()
        self._lib.mg_frame_decoder_init(ctypes.byref(decoder), buf, capacity)
        frames: list[bytes] = []
        errors: list[int] = []
        for byte in wire:
            n = self._lib.mg_frame_push(ctypes.byref(decoder), byte)
            if n > 0:
                frames.append(bytes(buf[:n]))
            elif n < 0:
                errors.append(n)
        assert bytes(buf[capacity:]) == b"\xee" * 8, "the decoder wrote behind its buffer"
        return frames, errors
