"""The trainer's session in C on a line whose every byte takes its time, in virtual time: exact figures, however busy this machine is.

Device and host run in turns. The device is a thread; it hands over whenever it looks at its line, and goes on as soon as the host, which
waits in ``read``, can do nothing before that moment.
"""

from __future__ import annotations

import ctypes
import math
import random
import shutil
import subprocess
import threading
from collections import deque
from pathlib import Path
from types import TracebackType

from mcugrad.board import find_board
from mcugrad.paths import firmware_dir, root

BITS_PER_BYTE = 10
"""Start bit, eight data bits, stop bit."""
RING_BYTES = 4096
SLICE_BYTES = 32

READ = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.POINTER(ctypes.c_uint8), ctypes.c_size_t)
WRITE = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_uint8), ctypes.c_size_t)
BAUD = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint32)
COMPUTED = ctypes.CFUNCTYPE(None)


class _Driver(ctypes.Structure):
    _fields_ = (("read", READ), ("write", WRITE), ("baud", BAUD), ("computed", COMPUTED))


def build_modelled_board(folder: Path) -> Path:
    """The shared library; each board loads a copy of its own, since its state is in the library."""
    library = find_board("host").build().elf.parent / "libmcugrad.a"
    fw, out = firmware_dir(), folder / "modelled_board.so"
    sources = [root() / "tests" / "helpers" / "modelled_board.c", *(fw / "link" / f"{n}.c" for n in ("frame", "session", "commands"))]
    defines = (
        *('-DMG_BOARD_NAME="modelled"', '-DMG_FIRMWARE_VERSION="0"', "-DMG_STACK_BYTES=4096", f"-DMG_RX_RING_BYTES={RING_BYTES}"),
        *("-DMG_TICK_UNIT=2", "-DMG_TICK_MUL=1", "-DMG_TICK_DIV=1"),
    )
    folders = [f"-I{fw / f}" for f in ("include", "core", "link")]
    command = ["cc", "-std=c11", "-O1", "-shared", "-fPIC", "-fno-strict-aliasing", *defines, *folders, *map(str, sources), str(library)]
    subprocess.run([*command, "-o", str(out)], check=True)
    return out


class ModelledBoard:
    """A transport to a board in this process. Use as a context manager; give ``clock`` to the session.

    ``rate`` is the host's and ``device_rate`` the device's; bytes that travel while they differ arrive as noise. At a rate of ``noisy``
    one byte in fifty is damaged; ``possible`` are the rates that the device can have. ``stop_s`` passes on the device whenever its
    stopwatch stops: once a TRAIN, or with START once an operator and once more.
    """

    def __init__(
        self,
        library: Path,
        folder: Path,
        *,
        rate: int = 115_200,
        stop_s: float = 0.0,
        noisy: frozenset[int] = frozenset(),
        possible: frozenset[int] | None = None,
        pool_bytes: int = 1 << 20,
    ) -> None:
        self.name = "modelled line"
        self.now = 0.0
        self.rate = self.device_rate = rate
        self.stop_s = stop_s
        self.noisy = noisy
        self.overruns = 0
        self.bytes_to_device = 0
        self._possible = possible
        self._broken: set[int] = set()
        self._random = random.Random(1)
        self._to_device: deque[tuple[float, int, bytes]] = deque()
        self._to_host: deque[tuple[float, int, bytes]] = deque()
        self._ring = bytearray()
        self._device_now = self._host_free = self._device_free = 0.0
        self._wake = 0.0
        self._closed = False
        self._error: BaseException | None = None
        own = folder / f"board{id(self)}.so"
        shutil.copy(library, own)
        self._lib = ctypes.CDLL(str(own))
        own.unlink()
        self._driver = _Driver(READ(self._read), WRITE(self._write), BAUD(self._baud), COMPUTED(self._computed))
        self._lib.board_start(ctypes.byref(self._driver), ctypes.c_size_t(pool_bytes))
        self._to_run, self._ran = threading.Lock(), threading.Lock()  # each is released by the other thread
        self._to_run.acquire()
        self._ran.acquire()
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._thread.start()

    def __enter__(self) -> ModelledBoard:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def clock(self) -> float:
        """Seconds of the host."""
        return self.now

    def break_rate(self, rate: int) -> None:
        """From now on bytes at ``rate`` are noise."""
        self._broken.add(rate)

    # ---- the host's end ------------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        self.bytes_to_device += len(data)
        start = max(self.now, self._host_free)
        self._host_free = start + self._seconds(len(data), self.rate)
        for at in range(0, len(data), SLICE_BYTES):
            piece = data[at : at + SLICE_BYTES]
            self._to_device.append((start + self._seconds(at + len(piece), self.rate), self.rate, piece))

    def read(self, timeout_s: float) -> bytes:
        end = self.now + timeout_s
        while True:
            arrived = b""
            while self._to_host and self._to_host[0][0] <= self.now:
                _, rate, piece = self._to_host.popleft()
                arrived += self._received(piece, rate, self.rate)
            if arrived:
                return arrived
            bytes_at = self._to_host[0][0] if self._to_host else math.inf
            device_at = min(self._wake, self._to_device[0][0]) if self._to_device else self._wake
            if min(bytes_at, device_at) > end:
                self.now = end
                return b""
            if device_at <= bytes_at:
                self._device_now = max(self._device_now, device_at)
                self._to_run.release()
                self._ran.acquire()
                if self._error is not None:
                    raise self._error
            else:
                self.now = bytes_at

    def set_baud(self, rate: int) -> bool:
        self.now = max(self.now, self._host_free)
        self.rate = rate
        return True

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._to_run.release()
            self._thread.join()

    # ---- the device's end ----------------------------------------------------------------------------------------------

    def _live(self) -> None:
        self._to_run.acquire()
        try:
            while not self._closed:
                self._lib.board_poll()
                self._hand_over(math.inf)
        except BaseException as e:
            self._error = e
        self._ran.release()

    def _hand_over(self, wake: float) -> None:
        if self._closed:
            return
        self._wake = wake
        self._ran.release()
        self._to_run.acquire()
        self._wake = math.inf

    def _read(self, bytes_: ctypes._Pointer[ctypes.c_uint8], n: int) -> int:
        self._hand_over(self._device_now)
        while self._to_device and self._to_device[0][0] <= self._device_now:
            _, rate, piece = self._to_device.popleft()
            room = RING_BYTES - 1 - len(self._ring)
            self.overruns += max(0, len(piece) - room)
            self._ring += self._received(piece, rate, self.device_rate)[:room]
        if self._closed:
            return 0
        taken = bytes(self._ring[:n])
        del self._ring[:n]
        ctypes.memmove(bytes_, taken, len(taken))
        return len(taken)

    def _write(self, bytes_: ctypes._Pointer[ctypes.c_uint8], n: int) -> None:
        self._device_now = max(self._device_now, self._device_free) + self._seconds(n, self.device_rate)
        self._device_free = self._device_now
        self._to_host.append((self._device_now, self.device_rate, ctypes.string_at(bytes_, n)))

    def _baud(self, rate: int) -> int:
        if self._possible is not None and rate not in self._possible:
            return 0
        self.device_rate = rate
        return 1

    def _computed(self) -> None:
        self._device_now += self.stop_s

    def _received(self, data: bytes, sent_at: int, received_at: int) -> bytes:
        if sent_at != received_at or sent_at in self._broken:
            return self._random.randbytes(len(data))
        if sent_at not in self.noisy:
            return data
        return bytes(b ^ 0x10 if self._random.random() < 0.02 else b for b in data)

    @staticmethod
    def _seconds(n: int, rate: int) -> float:
        return n * BITS_PER_BYTE / rate
