"""Ports: what is said when one cannot be opened, and pipes that trickle."""

from __future__ import annotations

import errno
import os
import pty
import select
import socket
import threading
import time

import pytest
import serial

from mcugrad.errors import LinkError, PortBusyError, PortPermissionError, UnavailableError
from mcugrad.link import SerialTransport, SocketTransport
from mcugrad.link.frame import Decoder, Frame, encode


def test_a_port_that_is_not_there() -> None:
    with pytest.raises(UnavailableError, match="there is no port /dev/ttyNOWHERE") as e:
        SerialTransport("/dev/ttyNOWHERE")
    assert e.value.exit_code == 69


def test_a_port_without_permission(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: object, **_kwargs: object) -> None:
        raise serial.SerialException(errno.EACCES, "could not open port /dev/ttyACM0: [Errno 13] Permission denied: '/dev/ttyACM0'")

    monkeypatch.setattr(serial, "Serial", refuse)
    with pytest.raises(PortPermissionError, match=r"/dev/ttyACM0: .*dialout") as e:
        SerialTransport("/dev/ttyACM0")
    assert e.value.exit_code == 77


def test_a_port_that_another_program_holds() -> None:
    ours, theirs = pty.openpty()
    path = os.ttyname(theirs)
    first = SerialTransport(path)
    with pytest.raises(PortBusyError, match=f"{path} is held by another program") as e:
        SerialTransport(path)
    assert e.value.exit_code == 73
    first.close()
    SerialTransport(path).close()
    os.close(ours)
    os.close(theirs)


def test_a_board_that_is_unplugged() -> None:
    ours, theirs = pty.openpty()
    transport = SerialTransport(os.ttyname(theirs))
    os.close(theirs)
    os.close(ours)
    with pytest.raises(LinkError, match="went away while reading"):
        transport.read(0.5)
    transport.close()


@pytest.mark.parametrize("n", [62, 63, 64, 65, 66, 127, 128, 129])
def test_frames_around_64_bytes_from_a_slow_line(n: int) -> None:
    """10 kB/s in odd pieces, as USB bridges give them."""
    ours, theirs = pty.openpty()
    transport = SerialTransport(os.ttyname(theirs))
    frames = [Frame(1, i, bytes([i]) * n) for i in range(4)]
    wire = b"".join(encode(f) for f in frames)

    def trickle() -> None:
        for at in range(0, len(wire), 13):
            os.write(ours, wire[at : at + 13])
            time.sleep(0.0013)

    writer = threading.Thread(target=trickle)
    writer.start()
    decoder, got = Decoder(), []
    end = time.monotonic() + 5
    while len(got) < len(frames) and time.monotonic() < end:
        got += decoder.push(transport.read(0.2))
    writer.join()
    assert got == frames
    transport.close()
    os.close(ours)
    os.close(theirs)


def test_a_reader_of_10_kb_a_second_gets_every_byte() -> None:
    """The line is full most of the time: os.write takes a part, and the rest is offered again."""
    ours, theirs = pty.openpty()
    transport = SerialTransport(os.ttyname(theirs))
    wire = b"".join(encode(Frame(1, i, bytes([i]) * (60 + i))) for i in range(100))
    got = bytearray()

    def sip() -> None:
        while len(got) < len(wire):
            got.extend(os.read(ours, 100))
            time.sleep(0.01)

    reader = threading.Thread(target=sip, daemon=True)
    reader.start()
    for at in range(0, len(wire), 5000):
        transport.write(wire[at : at + 5000])
    reader.join(10)
    assert bytes(got) == wire
    transport.close()
    os.close(ours)
    os.close(theirs)


def test_a_write_that_takes_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    transport = SerialTransport(os.ttyname(theirs))
    write = os.write
    sizes: list[int] = []

    def part(fd: int, data: bytes) -> int:
        sizes.append(len(data))
        return write(fd, data[:7])

    monkeypatch.setattr(os, "write", part)
    wire = encode(Frame(1, 1, bytes(range(256))))
    transport.write(wire)
    got = b""
    while len(got) < len(wire) and select.select([ours], [], [], 5)[0]:
        got += os.read(ours, 4096)
    assert got == wire and len(sizes) == -(-len(wire) // 7)
    transport.close()
    os.close(ours)
    os.close(theirs)


def test_a_read_waits_no_longer_than_asked() -> None:
    ours, theirs = socket.socketpair()
    transport = SocketTransport(ours, "emulator")
    start = time.monotonic()
    assert transport.read(0.05) == b""
    assert time.monotonic() - start < 2
    theirs.close()
    with pytest.raises(LinkError, match="emulator closed the line"):
        transport.read(0.05)
    transport.close()
