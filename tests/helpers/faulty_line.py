"""A transport that damages what passes through it."""

from __future__ import annotations

import random

from mcugrad.link import Transport


class FaultyTransport:
    """Drops, flips, duplicates, inserts bytes and cuts chunks short, in both directions, each byte with probability ``rate``."""

    def __init__(self, inner: Transport, seed: int, rate: float) -> None:
        self.name = "faulty line"
        self.faults = 0
        self.rate = rate
        self._inner = inner
        self._random = random.Random(seed)

    def read(self, timeout_s: float) -> bytes:
        return self._damage(self._inner.read(timeout_s))

    def write(self, data: bytes) -> None:
        self._inner.write(self._damage(data))

    def close(self) -> None:
        self._inner.close()

    def _damage(self, data: bytes) -> bytes:
        out = bytearray()
        for byte in data:
            if self._random.random() >= self.rate:
                out.append(byte)
                continue
            self.faults += 1
            kind = self._random.randrange(5)
            if kind == 0:
                out.append(byte ^ 1 << self._random.randrange(8))
            elif kind == 1:
                out += bytes((byte, byte))
            elif kind == 2:
                out += bytes((byte, self._random.randrange(256)))
            elif kind == 3:
                return bytes(out)
        return bytes(out)


class MuteTransport:
    """Passes ``allowed`` bytes from the device, then none; still takes everything."""

    def __init__(self, inner: Transport, allowed: int) -> None:
        self.name = "mute line"
        self.allowed = allowed
        self._inner = inner

    def read(self, timeout_s: float) -> bytes:
        data = self._inner.read(timeout_s)[: self.allowed]
        self.allowed -= len(data)
        return data

    def write(self, data: bytes) -> None:
        self._inner.write(data)

    def close(self) -> None:
        self._inner.close()
