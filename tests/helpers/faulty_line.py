"""Lines that damage what passes through them, stop, or give boards of other processes a way in."""

from __future__ import annotations

import contextlib
import random
import select
import socket
import threading
from enum import Enum
from types import TracebackType

from mcugrad.link import Transport


class Fault(Enum):
    """What happens to one byte."""

    DROP = "drop"
    FLIP = "flip"
    DUPLICATE = "duplicate"
    INSERT = "insert"
    TRUNCATE = "truncate"


class Way(Enum):
    """Whose bytes."""

    COMMAND = "command"
    REPLY = "reply"


def damaged(data: bytes, at: int, fault: Fault, rng: random.Random) -> bytes:
    """``data`` with ``fault`` at byte ``at``; a cut takes the rest of ``data`` with it."""
    before, byte, after = data[:at], data[at : at + 1], data[at + 1 :]
    match fault:
        case Fault.DROP:
            return before + after
        case Fault.FLIP:
            return before + bytes((byte[0] ^ 1 << rng.randrange(8),)) + after
        case Fault.DUPLICATE:
            return before + byte + byte + after
        case Fault.INSERT:
            return before + bytes((rng.randrange(256),)) + byte + after
        case Fault.TRUNCATE:
            return before


class Between:
    """Between a host and its line: all bytes of both ways go through ``_pass``."""

    def __init__(self, name: str, inner: Transport) -> None:
        self.name = name
        self._inner = inner

    def read(self, timeout_s: float) -> bytes:
        return self._pass(self._inner.read(timeout_s), Way.REPLY)

    def write(self, data: bytes) -> None:
        self._inner.write(self._pass(data, Way.COMMAND))

    def close(self) -> None:
        self._inner.close()

    def _pass(self, data: bytes, way: Way) -> bytes:
        """What the other end gets of ``data``."""
        raise NotImplementedError


class FaultyTransport(Between):
    """Drops, flips, duplicates, inserts bytes and cuts chunks short, in both directions, each byte with probability ``rate``."""

    def __init__(self, inner: Transport, seed: int, rate: float) -> None:
        super().__init__("faulty line", inner)
        self.faults = 0
        self.rate = rate
        self._random = random.Random(seed)

    def _pass(self, data: bytes, _: Way) -> bytes:
        out = bytearray()
        for byte in data:
            if self._random.random() >= self.rate:
                out.append(byte)
                continue
            self.faults += 1
            fault = self._random.choice(list(Fault))
            out += damaged(bytes((byte,)), 0, fault, self._random)
            if fault is Fault.TRUNCATE:
                break
        return bytes(out)


class AimedTransport(Between):
    """Hits one byte: once armed, that at ``at`` of the bytes that go one ``way`` from then on."""

    def __init__(self, inner: Transport, seed: int = 0) -> None:
        super().__init__("aimed line", inner)
        self.hits = 0
        self._random = random.Random(seed)
        self._way: Way | None = None
        self._at = 0
        self._fault = Fault.DROP

    def arm(self, way: Way, at: int, fault: Fault) -> None:
        self._way, self._at, self._fault = way, at, fault

    def _pass(self, data: bytes, way: Way) -> bytes:
        if way is not self._way:
            return data
        if self._at >= len(data):
            self._at -= len(data)
            return data
        self._way = None
        self.hits += 1
        return damaged(data, self._at, self._fault, self._random)


class DeadTransport(Between):
    """Passes ``allowed`` bytes of each way, then nothing that way: a peer, or a cable, that stops in the middle."""

    def __init__(self, inner: Transport, way: Way, allowed: int) -> None:
        super().__init__("dead line", inner)
        self.way = way
        self.allowed = allowed

    def _pass(self, data: bytes, way: Way) -> bytes:
        if way is not self.way:
            return data
        data = data[: self.allowed]
        self.allowed -= len(data)
        return data


class TcpRelay:
    """A TCP port of this machine whose bytes go to ``inner``. ``allowed`` of them come back from there, then none until it is raised.

    One client at a time, any number one after the other. Use as a context manager.
    """

    def __init__(self, inner: Transport, allowed: int = 1 << 60) -> None:
        self.allowed = allowed
        self._inner = inner
        self._server = socket.create_server(("127.0.0.1", 0))
        self._stop = False
        self._thread = threading.Thread(target=self._serve, daemon=True)

    @property
    def address(self) -> str:
        return f"tcp://127.0.0.1:{self._server.getsockname()[1]}"

    def __enter__(self) -> TcpRelay:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._stop = True
        self._thread.join()
        self._server.close()

    def _serve(self) -> None:
        while not self._stop:
            if select.select([self._server], [], [], 0.05)[0]:
                client, _ = self._server.accept()
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                gone = threading.Event()
                back = threading.Thread(target=self._bring_back, args=(client, gone), daemon=True)
                with client:
                    back.start()
                    self._take(client)
                    gone.set()
                    back.join()

    def _take(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while not self._stop:
                if select.select([client], [], [], 0.05)[0]:
                    data = client.recv(65536)
                    if not data:
                        return
                    self._inner.write(data)

    def _bring_back(self, client: socket.socket, gone: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while not gone.is_set():
                data = self._inner.read(0.05)[: self.allowed]
                self.allowed -= len(data)
                client.sendall(data)
