"""Byte streams to a board: a serial port or pty, and a socket."""

from __future__ import annotations

import errno
import socket
import time
from typing import Any, Protocol

import serial

from mcugrad.errors import LinkError, PortBusyError, PortPermissionError, UnavailableError

DEFAULT_BAUD = 115_200
_SLICE_S = 0.05
_WRITE_DEADLINE_S = 30.0


class Transport(Protocol):
    """What a session needs. ``name`` is what error texts call the peer."""

    name: str

    def read(self, timeout_s: float) -> bytes:
        """Bytes as they come; empty after ``timeout_s`` without any. Raises LinkError where the peer is gone."""

    def write(self, data: bytes) -> None:
        """Send all of ``data``. Raises LinkError where the peer is gone or takes nothing."""

    def close(self) -> None:
        """Give the line back; a second call does nothing."""


class SerialTransport:
    """A serial port or a pty, locked against a second opener."""

    def __init__(self, port: str, baud: int = DEFAULT_BAUD) -> None:
        """Open ``port``. Raises PortPermissionError, PortBusyError or UnavailableError."""
        self.name = port
        try:
            self._serial: Any = serial.Serial(port, baud, timeout=_SLICE_S, write_timeout=_WRITE_DEADLINE_S, exclusive=True)
        except (serial.SerialException, OSError, ValueError) as e:
            raise _open_error(port, baud, e) from None

    def read(self, timeout_s: float) -> bytes:
        end = time.monotonic() + timeout_s
        try:
            while True:
                data = bytes(self._serial.read(1))
                if data:
                    return data + bytes(self._serial.read(self._serial.in_waiting))
                if time.monotonic() >= end:
                    return b""
        except (serial.SerialException, OSError) as e:
            raise LinkError(f"{self.name} went away while reading ({e})", "check the cable and the board's power, then try again") from None

    def write(self, data: bytes) -> None:
        try:
            self._serial.write(data)
        except serial.SerialTimeoutException:
            raise LinkError(f"{self.name} took no bytes for {_WRITE_DEADLINE_S:.0f} s", "reset the board and try again") from None
        except (serial.SerialException, OSError) as e:
            raise LinkError(f"{self.name} went away while writing ({e})", "check the cable and the board's power, then try again") from None

    def close(self) -> None:
        self._serial.close()


class SocketTransport:
    """A connected stream socket, as an emulator's UART."""

    def __init__(self, connected: socket.socket, name: str) -> None:
        self.name = name
        self._socket = connected

    def read(self, timeout_s: float) -> bytes:
        self._socket.settimeout(max(timeout_s, 1e-3))
        try:
            data = self._socket.recv(65536)
        except TimeoutError:
            return b""
        except OSError as e:
            raise LinkError(f"{self.name} went away while reading ({e})", "start it again") from None
        if not data:
            raise LinkError(f"{self.name} closed the line", "it crashed or was ended from outside: start it again")
        return data

    def write(self, data: bytes) -> None:
        self._socket.settimeout(_WRITE_DEADLINE_S)
        try:
            self._socket.sendall(data)
        except TimeoutError:
            raise LinkError(f"{self.name} took no bytes for {_WRITE_DEADLINE_S:.0f} s", "start it again") from None
        except OSError as e:
            raise LinkError(f"{self.name} went away while writing ({e})", "start it again") from None

    def close(self) -> None:
        self._socket.close()


def _open_error(port: str, baud: int, e: Exception) -> LinkError | UnavailableError:
    code = getattr(e, "errno", None)
    text = str(e).lower()
    if code in (errno.EACCES, errno.EPERM) or "permission denied" in text or "access is denied" in text:
        return PortPermissionError(
            f"no permission to open {port}", "add yourself to the group dialout (sudo usermod -aG dialout $USER), log in again"
        )
    if code in (errno.EBUSY, errno.EAGAIN) or "could not exclusively lock" in text or "resource temporarily unavailable" in text:
        return PortBusyError(f"{port} is held by another program", "close the terminal or debugger that uses it and try again")
    if code in (errno.ENOENT, errno.ENODEV, errno.ENXIO) or "no such file" in text or "could not find" in text:
        return UnavailableError(f"there is no port {port}", "list the ports with: mcugrad ports")
    return UnavailableError(f"{port} cannot be opened at {baud} baud ({e})", "list the ports with: mcugrad ports")
