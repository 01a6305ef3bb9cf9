"""Byte streams to a board: a serial port or pty, and a socket."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import time
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import serial

from mcugrad.errors import LinkError, PortBusyError, PortPermissionError, UnavailableError
from mcugrad.link.protocol import START_BAUD

try:
    import fcntl
    import termios
except ImportError:  # no POSIX
    termios = None  # type: ignore[assignment]

DEFAULT_BAUD = START_BAUD
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


@runtime_checkable
class RatedLine(Protocol):
    """A transport whose line has a rate that can be changed."""

    def set_baud(self, rate: int) -> bool:
        """Change the rate. False where the port cannot have it; it then keeps the rate it had."""


class Lines(Enum):
    """What becomes of DTR and RTS when a port is opened: on many boards they are wired to reset."""

    RAISE = "raise"
    LEAVE = "leave"


class _LeavingSerial(serial.Serial):  # type: ignore[misc]
    """Never sets DTR or RTS. (The kernel raises both itself when the first program opens a port; this one leaves them up for the next.)"""

    def _update_dtr_state(self) -> None:
        pass

    def _update_rts_state(self) -> None:
        pass


class SerialTransport:
    """A serial port or a pty, locked against a second opener.

    Where the port goes away, as that of a USB device does that resets, it is waited for ``return_s``, found again by ``find_again`` (its
    name may be another by then) and opened anew; the session repairs what was lost.
    """

    def __init__(
        self,
        port: str,
        baud: int | None = None,
        lines: Lines = Lines.RAISE,
        *,
        return_s: float = 0.0,
        find_again: Callable[[], str | None] | None = None,
        write_s: float = _WRITE_DEADLINE_S,
    ) -> None:
        """Open ``port``; ``baud`` None leaves the rate to be negotiated. Raises PortPermissionError, PortBusyError or UnavailableError."""
        self.name = port
        self.negotiable = baud is None
        self._baud = baud or DEFAULT_BAUD
        self._lines = lines
        self._return_s = return_s
        self._find_again = find_again or (lambda: port)
        self._write_s = write_s
        self._serial: Any = self._open(port)

    def _open(self, port: str) -> Any:
        kind = serial.Serial if self._lines is Lines.RAISE else _LeavingSerial
        try:
            opened = kind(port, self._baud, timeout=_SLICE_S, write_timeout=self._write_s, exclusive=True)
        except (serial.SerialException, OSError, ValueError) as e:
            raise _open_error(port, self._baud, e) from None
        _take(opened, self._lines)
        return opened

    def read(self, timeout_s: float) -> bytes:
        end = time.monotonic() + timeout_s
        try:
            while True:
                data = bytes(self._serial.read(1))
                if data:
                    return data + bytes(self._serial.read(self._serial.in_waiting))
                if time.monotonic() >= end:
                    return b""
        except (serial.SerialException, OSError, TypeError) as e:  # TypeError: pyserial on a port that was closed meanwhile
            self._await_return("reading", e)
            return b""

    def write(self, data: bytes) -> None:
        try:
            self._serial.write(data)
        except serial.SerialTimeoutException:
            raise LinkError(f"{self.name} took no bytes for {self._write_s:g} s", "reset the board and try again") from None
        except (serial.SerialException, OSError) as e:
            self._await_return("writing", e)

    def set_baud(self, rate: int) -> bool:
        before = self._baud
        try:
            self._serial.flush()
            self._serial.baudrate = rate
        except (serial.SerialException, OSError, ValueError):
            self._serial.baudrate = before
            return False
        self._baud = rate
        return True

    def close(self) -> None:
        _give_back(self._serial)
        self._serial.close()

    def _await_return(self, doing: str, e: Exception) -> None:
        """Wait for the port and open it again. Raises LinkError where it does not come back."""
        end = time.monotonic() + self._return_s
        self.close()
        while time.monotonic() < end:
            port = self._find_again()
            if port is not None:
                try:
                    self._serial = self._open(port)
                except (LinkError, UnavailableError):
                    pass
                else:
                    self.name = port
                    return
            time.sleep(_SLICE_S)
        raise LinkError(f"{self.name} went away while {doing} ({e})", "check the cable and the board's power, then try again") from None


def _take(port: Any, lines: Lines) -> None:
    """Lock the port against programs that know of no lock files; with Lines.LEAVE, see that closing it does not drop DTR."""
    if termios is None:
        return
    with contextlib.suppress(OSError, termios.error):
        fcntl.ioctl(port.fd, termios.TIOCEXCL)
        if lines is Lines.LEAVE:
            settings = termios.tcgetattr(port.fd)
            settings[2] &= ~termios.HUPCL
            termios.tcsetattr(port.fd, termios.TCSANOW, settings)


def _give_back(port: Any) -> None:
    if termios is not None and port.is_open:
        with contextlib.suppress(OSError):
            fcntl.ioctl(port.fd, termios.TIOCNXCL)


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
        return _no_permission(port)
    if code in (errno.EBUSY, errno.EAGAIN) or "could not exclusively lock" in text or "resource temporarily unavailable" in text:
        holder = holder_of(port)
        return PortBusyError(f"port busy: {port} is held by {holder or 'another program'}", _release_hint(holder))
    if code in (errno.ENOENT, errno.ENODEV, errno.ENXIO) or "no such file" in text or "could not find" in text:
        return UnavailableError(f"there is no port {port}", "list the ports with: mcugrad ports")
    return UnavailableError(f"{port} cannot be opened at {baud} baud ({e})", "list the ports with: mcugrad ports")


def holder_of(port: str) -> str | None:
    """`NAME (pid N)` of another process that has ``port`` open; None where there is none, or it is another user's."""
    node = os.path.realpath(port)
    for fd in Path("/proc").glob("[0-9]*/fd/*"):
        pid = fd.parts[2]
        with contextlib.suppress(OSError):
            if int(pid) != os.getpid() and os.readlink(fd) == node:
                return f"{Path('/proc', pid, 'comm').read_text().strip()} (pid {pid})"
    return None


def _release_hint(holder: str | None) -> str:
    if holder is not None and holder.startswith("ModemManager"):
        return 'it leaves boards alone with the udev rule ENV{ID_MM_DEVICE_IGNORE}="1", or: sudo systemctl stop ModemManager'
    return "close the terminal or debugger that uses it and try again"


def _no_permission(port: str) -> PortPermissionError:
    group, mode = "dialout", ""
    with contextlib.suppress(OSError, ImportError, KeyError):
        import grp  # noqa: PLC0415 - only where there is POSIX

        found = Path(port).stat()
        group = grp.getgrgid(found.st_gid).gr_name
        mode = f" (it belongs to group {group}, {stat.filemode(found.st_mode)})"
    join = "dialout" if group == "root" else group
    return PortPermissionError(
        f"no permission to open {port}{mode}",
        f"add yourself to the group {join} (sudo usermod -aG {join} $USER) and log in again, or let a udev rule give you the device: "
        'SUBSYSTEM=="tty", ATTRS{idVendor}=="VVVV", TAG+="uaccess"',
    )
