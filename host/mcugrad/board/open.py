"""A board by its name, running and connected: one code path for a host process, an emulator and hardware."""

from __future__ import annotations

import contextlib
import select
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mcugrad.board.build import Firmware, need_tool
from mcugrad.board.ports import find_port, finder
from mcugrad.board.renode import need_renode, renode_process
from mcugrad.board.table import Board, Kind, find_board
from mcugrad.errors import LinkError, UnavailableError, UsageError
from mcugrad.link.protocol import TickUnit
from mcugrad.link.transport import DEFAULT_BAUD, Lines, SerialTransport, SocketTransport, Transport

_START_S = 10.0
_STOP_S = 2.0
CONNECT_S = 5.0
RETURN_S = 5.0
"""So long the port of a board that resets may be away."""


@contextlib.contextmanager
def open_board(spec: str, firmware: Firmware | None = None) -> Iterator[tuple[Board, Transport]]:
    """Start or open the board that ``spec`` names, and end it on the way out, whatever happens inside.

    ``spec``: a name of boards/ that runs on this machine, or a line as in ``parse_line`` (then the sizes of the Board are 0:
    HELLO tells them).
    ``firmware``: the image to run, built where it is None. Raises UsageError, UnavailableError, PortBusyError, PortPermissionError.
    """
    if spec.startswith("serial:"):
        line = parse_line(spec)
        with contextlib.closing(_open_line(line)) as transport:
            yield _serial_board(transport.name), transport
        return
    board = find_board(spec)
    if board.kind is Kind.HARDWARE:
        raise UsageError(f"{spec} is hardware", f"mcugrad flash --board {spec}, then use --board serial:PORT ({board.title})")
    if board.kind is Kind.QEMU:
        need_emulator()
    if board.kind is Kind.RENODE:
        need_renode(board)
    image = firmware or board.build()
    with _START[board.kind](board, image.elf) as transport:
        yield board, transport


def need_emulator() -> None:
    """Raise UnavailableError where QEMU is missing."""
    need_tool("qemu-system-arm")


@contextlib.contextmanager
def _host_process(board: Board, image: Path) -> Iterator[Transport]:
    process = subprocess.Popen([str(image)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    with _ended(process):
        ready, _, _ = select.select([process.stdout], [], [], _START_S)
        path = process.stdout.readline().decode().strip() if ready else ""
        if not path:
            raise UnavailableError(f"{image} opened no pty", "is /dev/pts mounted?")
        with contextlib.closing(SerialTransport(path, DEFAULT_BAUD)) as transport:
            transport.name = board.name
            yield transport


@contextlib.contextmanager
def _qemu_process(board: Board, image: Path) -> Iterator[Transport]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with contextlib.closing(SocketTransport(ours, board.name)) as transport, tempfile.TemporaryFile() as messages:
        with theirs:
            process = subprocess.Popen(
                _qemu_command(board, image, theirs.fileno()),
                stdin=subprocess.DEVNULL,
                stdout=messages,
                stderr=messages,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        with _ended(process):
            try:
                yield transport
            except LinkError as e:
                if not _has_ended(process):
                    raise
                messages.seek(0)
                said = messages.read().decode(errors="replace").strip().splitlines() or ["no message"]
                raise UnavailableError(f"qemu-system-arm ended with {process.returncode}: {said[0]}", "run mcugrad doctor") from e


_START = {Kind.HOST: _host_process, Kind.QEMU: _qemu_process, Kind.RENODE: renode_process}


def _qemu_command(board: Board, image: Path, fd: int) -> list[str]:
    tied = ["setpriv", "--pdeathsig", "KILL", "--"] if shutil.which("setpriv") else []  # no orphan where we are killed
    return [
        *tied,
        "qemu-system-arm",
        *("-M", board.qemu_machine, *board.qemu_args),
        *("-nographic", "-monitor", "none", "-nodefaults"),
        *("-chardev", f"socket,id=uart0,fd={fd}", "-serial", "chardev:uart0"),
        *("-kernel", str(image)),
    ]


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(0.5)
    return process.returncode is not None


@contextlib.contextmanager
def _ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    try:
        yield
    finally:
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@dataclass(frozen=True, slots=True)
class Line:
    """Where a board is. ``port``: a serial port, `auto`, or tcp://HOST:PORT. ``baud`` None: 115,200, and faster where both ends can."""

    port: str
    baud: int | None
    lines: Lines


def parse_line(spec: str) -> Line:
    """Read serial:PORT[:BAUD][:no-reset]. Raises UsageError."""
    rest = spec.removeprefix("serial:")
    lines = Lines.LEAVE if rest.endswith(":no-reset") else Lines.RAISE
    rest = rest.removesuffix(":no-reset")
    port, colon, last = rest.rpartition(":")
    baud = int(last) if colon and last.isdigit() and not _is_socket(rest) else None
    port = rest if baud is None else port
    if not port or baud == 0:
        raise UsageError(f"{spec!r} names no serial port", "write serial:PORT or serial:PORT:BAUD, for example serial:/dev/ttyACM0:115200")
    return Line(port, baud, lines)


def _is_socket(port: str) -> bool:
    return port.startswith(("tcp://", "socket://"))


def _open_line(line: Line) -> Transport:
    if _is_socket(line.port):
        return _connect(line.port)
    port = find_port(Lines.LEAVE) if line.port == "auto" else line.port
    return SerialTransport(port, line.baud, line.lines, return_s=RETURN_S, find_again=finder(port))


def _connect(address: str) -> SocketTransport:
    """Raises UsageError, UnavailableError."""
    host, _, port = address.partition("://")[2].rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise UsageError(f"{address} is no address", "write serial:tcp://HOST:PORT")
    try:
        connected = socket.create_connection((host.strip("[]"), int(port)), CONNECT_S)
    except OSError as e:
        raise UnavailableError(f"nothing can be reached at {address} ({e.strerror or e})", "start the emulator or server first") from None
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return SocketTransport(connected, address)


def _serial_board(port: str) -> Board:
    return Board("serial", f"hardware on {port}", "", Kind.SERIAL, 0, 0, 0, 0, 0, TickUnit.NONE, 1, 1)
