"""Which port a board is on, who holds it, and what opening it does."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import serial
from serial import serialposix
from serial.tools import list_ports as serial_ports

from helpers.cli import mcugrad
from helpers.faulty_line import TcpRelay
from helpers.tiny_plan import samples, tiny_plan
from mcugrad.board import Firmware, open_board
from mcugrad.board.open import Line, parse_line
from mcugrad.board.ports import find_port, list_ports, probe
from mcugrad.errors import LinkError, PortBusyError, PortPermissionError, UnavailableError, UsageError
from mcugrad.link import SerialTransport, Session, Transport
from mcugrad.link.baud import speed_up
from mcugrad.link.transport import Lines, holder_of

SIGNALS = (termios.TIOCMBIS, termios.TIOCMBIC, termios.TIOCMSET)


def entry(
    device: str, description: str = "n/a", vid: int | None = None, pid: int | None = None, number: str | None = None
) -> SimpleNamespace:
    return SimpleNamespace(device=device, description=description, vid=vid, pid=pid, serial_number=number)


def st_link(device: str, number: str = "066B") -> SimpleNamespace:
    return entry(device, "STM32 STLink", 0x0483, 0x374B, number)


@pytest.fixture
def plug(monkeypatch: pytest.MonkeyPatch) -> list[SimpleNamespace]:
    """The list of ports that the machine seems to have."""
    found: list[SimpleNamespace] = []
    monkeypatch.setattr(serial_ports, "comports", lambda: list(found))
    return found


@contextlib.contextmanager
def device(answer: bytes = b"", *, echo: bool = False) -> Iterator[tuple[str, list[bytes]]]:
    """(path, what it has heard) of something at a serial port that is no board of ours."""
    ours, theirs = pty.openpty()
    heard: list[bytes] = []
    stop = threading.Event()

    def live() -> None:
        while not stop.is_set():
            if select.select([ours], [], [], 0.02)[0]:
                with contextlib.suppress(OSError):
                    data = os.read(ours, 4096)
                    heard.append(data)
                    os.write(ours, data if echo else answer)

    thread = threading.Thread(target=live)
    thread.start()
    yield os.ttyname(theirs), heard
    stop.set()
    thread.join()
    os.close(ours)
    os.close(theirs)


@pytest.fixture
def board_port(host_firmware: Firmware) -> Iterator[str]:
    """The path of a pty where a board waits."""
    with open_board("host", host_firmware) as (_, line):
        line.close()
        yield line._serial.port  # type: ignore[attr-defined]


# ---- --port auto ----------------------------------------------------------------------------------------------------------


def test_only_the_port_that_answers_is_taken(plug: list[SimpleNamespace], board_port: str) -> None:
    """A modem that answers, one that echoes, a mute UART, and Bluetooth, which is not even opened."""
    with device(b"\r\nERROR\r\n") as (modem, heard), device(echo=True) as (echoing, _), device() as (mute, _):
        plug += [entry("/dev/rfcomm0"), entry("/dev/cu.Bluetooth-Incoming-Port"), entry(mute), entry(modem, "Huawei modem", 0x12D1, 0x1001)]
        plug += [st_link(echoing, "1"), entry(board_port, "USB Serial", 0x1A86, 0x7523)]
        start = time.monotonic()
        assert find_port(Lines.LEAVE) == board_port
        assert time.monotonic() - start < 3.5, "half a second each"
        assert heard, "the modem was asked too"


def test_the_board_is_used_at_once(plug: list[SimpleNamespace], board_port: str) -> None:
    plug += [entry(board_port)]
    with open_board("serial:auto") as (_, line):
        assert line.name == board_port
        assert Session(line, deadline_s=5).hello().board == "host"


def test_two_boards_are_listed(plug: list[SimpleNamespace], board_port: str, host_firmware: Firmware) -> None:
    with open_board("host", host_firmware) as (_, line):
        line.close()
        other = line._serial.port  # type: ignore[attr-defined]
        plug += [entry(board_port), entry(other)]
        ports = sorted([board_port, other])
        with pytest.raises(UsageError, match=rf"2 boards answer: {ports[0]} \(host\), {ports[1]} \(host\).*--port {ports[0]}") as e:
            find_port(Lines.LEAVE)
    assert e.value.exit_code == 2


def test_no_board_says_what_was_tried(plug: list[SimpleNamespace], monkeypatch: pytest.MonkeyPatch) -> None:
    with device() as (mute, _):
        plug += [entry(mute), entry("/dev/ttyS0"), entry("/dev/rfcomm1"), entry("/dev/ttyACM9", "", 0x0483, 0x374B)]
        opened = serial.Serial

        def refuse(port: str, *more: Any, **named: Any) -> Any:
            if port == "/dev/ttyS0":
                raise serial.SerialException(13, "could not open port /dev/ttyS0: Permission denied")
            return opened(port, *more, **named)

        monkeypatch.setattr("mcugrad.link.transport._LeavingSerial", refuse)
        with pytest.raises(UnavailableError) as e:
            find_port(Lines.LEAVE)
    assert e.value.exit_code == 69
    for text in (f"{mute}: no answer", "/dev/ttyS0: no permission", "/dev/rfcomm1: Bluetooth, not tried", "/dev/ttyACM9: no answer"):
        assert text in e.value.text
    assert "--port /dev/ttyS0 says how" in e.value.hint


def test_no_port_at_all(plug: list[SimpleNamespace]) -> None:
    with pytest.raises(UnavailableError, match=r"no serial port answers HELLO \(this machine has none\).*plug the board in"):
        find_port(Lines.LEAVE)


def test_the_options(plug: list[SimpleNamespace]) -> None:
    """69 where nothing answers, 2 where two options say what the board is."""
    model, data = "examples/watch/watch_base.tflite", "none.npz"
    assert mcugrad("check", model, "--data", data, "--port", "x", "--board", "host").code == 2
    assert mcugrad("check", model, "--data", data, "--no-reset", "--board", "host").code == 2
    assert mcugrad("checkpoint", "--port", "auto").code == 69
    assert mcugrad("checkpoint", "--port", "/dev/ttyNOWHERE", "--no-reset").code == 69


@pytest.mark.parametrize(
    ("spec", "line"),
    [
        ("serial:/dev/ttyACM0", Line("/dev/ttyACM0", None, Lines.RAISE)),
        ("serial:/dev/ttyACM0:9600", Line("/dev/ttyACM0", 9600, Lines.RAISE)),
        ("serial:/dev/ttyACM0:9600:no-reset", Line("/dev/ttyACM0", 9600, Lines.LEAVE)),
        ("serial:auto:no-reset", Line("auto", None, Lines.LEAVE)),
        ("serial:COM3", Line("COM3", None, Lines.RAISE)),
        ("serial:tcp://localhost:5151", Line("tcp://localhost:5151", None, Lines.RAISE)),
    ],
)
def test_names_of_lines(spec: str, line: Line) -> None:
    assert parse_line(spec) == line


def test_a_board_behind_tcp(line: Transport) -> None:
    with TcpRelay(line) as relay, open_board(f"serial:{relay.address}") as (_, far):
        assert Session(far, deadline_s=5).hello().board == "host"


@pytest.mark.parametrize(("address", "code"), [("tcp://127.0.0.1:1", 69), ("tcp://127.0.0.1:x", 2), ("tcp://:80", 2)])
def test_nothing_behind_tcp(address: str, code: int) -> None:
    with pytest.raises((UnavailableError, UsageError)) as e, open_board(f"serial:{address}"):
        pass
    assert e.value.exit_code == code


def test_the_rate_of_a_port_is_negotiated_unless_it_is_named(board_port: str) -> None:
    for named, rate in (("", 1_000_000), (":9600", None)):
        with open_board(f"serial:{board_port}{named}") as (_, line):
            session = Session(line, deadline_s=5)
            session.hello()
            assert speed_up(session, line) == rate
            session.load_plan(tiny_plan())
            assert line._serial.baudrate == (rate or 9600)  # type: ignore[attr-defined]
            session.bye()


# ---- what others send -----------------------------------------------------------------------------------------------------


class Noisy:
    """A line into which others talk: ``before`` and ``inside`` of the first bytes from the board."""

    name = "noisy line"

    def __init__(self, inner: Transport, before: bytes, inside: bytes) -> None:
        self._inner, self._before, self._inside = inner, before, inside

    def read(self, timeout_s: float) -> bytes:
        data = self._inner.read(timeout_s)
        if data and self._before:
            data = self._before + data[: len(data) // 2] + self._inside + data[len(data) // 2 :]
            self._before = b""
        return data

    def write(self, data: bytes) -> None:
        self._inner.write(data)

    def close(self) -> None:
        self._inner.close()


BANNER = b"\r\n*** Booting ***\r\nU-Boot 2024.01 (Jan 08 2024)\r\n\x00\xff"


@pytest.mark.parametrize("inside", [b"", BANNER, b"\0", b"A"])
def test_a_boot_banner_in_the_middle_of_hello(line: Transport, inside: bytes) -> None:
    session = Session(Noisy(line, BANNER, inside), deadline_s=5, retry_s=0.1)
    assert session.hello().board == "host"
    session.load_plan(tiny_plan())


def test_what_modem_manager_sends_is_dropped(line: Transport) -> None:
    """Before HELLO, between frames, and in the middle of one."""
    junk = b"AT\r\nATE1 E0\r\nAT+CGMI\r\n~\x00x\xf0~"
    line.write(junk)
    session = Session(line, deadline_s=5, retry_s=0.1)
    session.hello()
    session.load_plan(tiny_plan())
    write = line.write
    sent = 0

    def between(data: bytes) -> None:
        nonlocal sent
        sent += 1
        write(data[:5] + junk + data[5:] if sent == 7 else junk + data if sent % 10 == 0 else data)

    line.write = between  # type: ignore[method-assign]
    assert len(list(session.train_stream(samples(30), 0.0))) == 30


# ---- opening --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def signals(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The requests to the kernel that change DTR or RTS."""
    seen: list[int] = []
    ioctl = fcntl.ioctl

    def watch(fd: int, request: int, *more: Any) -> Any:
        if request in SIGNALS:
            seen.append(request)
            return 0
        return ioctl(fd, request, *more)

    monkeypatch.setattr(serialposix.fcntl, "ioctl", watch)
    return seen


def hangs_up(path: str) -> bool:
    fd = os.open(path, os.O_RDWR | os.O_NOCTTY)
    try:
        return bool(termios.tcgetattr(fd)[2] & termios.HUPCL)
    finally:
        os.close(fd)


def test_no_reset_never_touches_dtr_and_rts(board_port: str, signals: list[int]) -> None:
    with open_board(f"serial:{board_port}:no-reset") as (_, line):
        Session(line, deadline_s=5).hello()
        assert not hangs_up(board_port), "closing would drop DTR"
    assert signals == []


def test_otherwise_both_are_raised(board_port: str, signals: list[int]) -> None:
    with open_board(f"serial:{board_port}") as (_, line):
        Session(line, deadline_s=5).hello()
    assert signals == [termios.TIOCMBIS, termios.TIOCMBIS]


def test_looking_for_a_board_resets_none(board_port: str, signals: list[int], plug: list[SimpleNamespace]) -> None:
    plug += [entry(board_port)]
    assert probe(list_ports()[0], Lines.LEAVE).board == "host" and signals == []


HOLDER = """
import fcntl, os, sys, time
fd = os.open(sys.argv[1], os.O_RDWR | os.O_NOCTTY)
fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
print("held", flush=True)
time.sleep(60)
"""


@contextlib.contextmanager
def held(path: str) -> Iterator[str]:
    """Another process has the lock of ``path``. Yields how it is called."""
    with subprocess.Popen([sys.executable, "-c", HOLDER, path], stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout is not None and other.stdout.readline() == "held\n"
            yield f"{Path(f'/proc/{other.pid}/comm').read_text().strip()} (pid {other.pid})"
        finally:
            other.kill()


def test_a_busy_port_says_who_holds_it(plug: list[SimpleNamespace]) -> None:
    with device() as (path, _):
        assert holder_of(path) is None
        with held(path) as holder:
            assert holder_of(path) == holder
            with pytest.raises(PortBusyError, match=rf"port busy: {path} is held by {re.escape(holder)}") as e:
                SerialTransport(path)
            assert e.value.exit_code == 73
            plug += [entry(path)]
            with pytest.raises(UnavailableError, match=rf"{path}: held by {re.escape(holder)}"):
                find_port(Lines.LEAVE)
            assert mcugrad("checkpoint", "--port", path).code == 73


def test_our_lock_keeps_others_out() -> None:
    ours, theirs = pty.openpty()
    path = os.ttyname(theirs)
    transport = SerialTransport(path)
    fd = os.open(path, os.O_RDWR | os.O_NOCTTY)
    with pytest.raises(BlockingIOError):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert is_exclusive(theirs)
    transport.close()
    assert not is_exclusive(theirs), "a pty that lives on can be opened again"
    for f in (fd, ours, theirs):
        os.close(f)


def is_exclusive(fd: int) -> bool:
    tiocgexcl = 0x80045440
    return fcntl.ioctl(fd, tiocgexcl, bytes(4)) != bytes(4)


def test_modem_manager_has_a_hint_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    first = SerialTransport(os.ttyname(theirs))
    monkeypatch.setattr("mcugrad.link.transport.holder_of", lambda _port: "ModemManager (pid 812)")
    with pytest.raises(PortBusyError, match=r"held by ModemManager \(pid 812\).*ID_MM_DEVICE_IGNORE"):
        SerialTransport(os.ttyname(theirs))
    first.close()
    os.close(ours)
    os.close(theirs)


def test_no_permission_names_node_group_and_both_ways_out(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    path = os.ttyname(theirs)
    os.fchmod(theirs, 0o620)

    def refuse(*_args: object, **_kwargs: object) -> None:
        raise serial.SerialException(13, f"could not open port {path}: [Errno 13] Permission denied: '{path}'")

    monkeypatch.setattr(serial, "Serial", refuse)
    with pytest.raises(PortPermissionError, match=rf"no permission to open {path} \(it belongs to group \w+, crw--w----\)") as e:
        SerialTransport(path)
    assert e.value.exit_code == 77
    assert "usermod -aG" in e.value.hint and 'SUBSYSTEM=="tty"' in e.value.hint
    os.close(ours)
    os.close(theirs)


# ---- ports that come and go -----------------------------------------------------------------------------------------------


class UsbBridge:
    """A USB-serial bridge to ``board``: unplugged and plugged in again it is another pty, under the name that ``plug`` tells."""

    def __init__(self, board: Transport) -> None:
        self._board = board
        self._alive = threading.Event()

    def plug_in(self) -> str:
        ours, theirs = pty.openpty()
        self._alive.set()
        self._thread = threading.Thread(target=self._relay, args=(ours, theirs), daemon=True)
        self._thread.start()
        return os.ttyname(theirs)

    def pull(self) -> None:
        self._alive.clear()
        self._thread.join()

    def _relay(self, ours: int, theirs: int) -> None:
        while self._alive.is_set():
            if select.select([ours], [], [], 0.002)[0]:
                self._board.write(os.read(ours, 4096))
            data = self._board.read(0.002)
            if data:
                os.write(ours, data)
        os.close(theirs)
        os.close(ours)


def test_a_port_that_returns_under_another_name(line: Transport, plug: list[SimpleNamespace]) -> None:
    """The board went on; the run loses nothing."""
    bridge = UsbBridge(line)
    plug.append(st_link(bridge.plug_in()))
    with open_board(f"serial:{plug[0].device}") as (_, transport):
        session = Session(transport, deadline_s=20, retry_s=0.1)
        session.hello()
        session.load_plan(tiny_plan())
        done = 0
        for _ in session.train_stream(samples(40), 0.0):
            done += 1
            if done == 20:
                bridge.pull()
                plug.clear()
                threading.Timer(0.3, lambda: plug.append(st_link(bridge.plug_in()))).start()
        state = session.read_state()
    bridge.pull()
    line.write(b"\0")
    quiet = Session(line, deadline_s=5)
    quiet.hello()
    quiet.load_plan(tiny_plan())
    list(quiet.train_stream(samples(40), 0.0))
    assert done == 40 and state == quiet.read_state()


def test_a_port_that_goes_away_while_hello_is_sent(line: Transport, plug: list[SimpleNamespace]) -> None:
    """A board that DTR resets takes its own USB port with it."""
    bridge = UsbBridge(line)
    plug.append(st_link(bridge.plug_in()))
    with open_board(f"serial:{plug[0].device}") as (_, transport):
        bridge.pull()
        plug.clear()
        threading.Timer(0.3, lambda: plug.append(st_link(bridge.plug_in()))).start()
        assert Session(transport, deadline_s=10, retry_s=0.1).hello().board == "host"
    bridge.pull()


def test_a_port_that_stays_away(line: Transport, plug: list[SimpleNamespace], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcugrad.board.open.RETURN_S", 0.3)
    bridge = UsbBridge(line)
    plug.append(st_link(bridge.plug_in()))
    with open_board(f"serial:{plug[0].device}") as (_, transport):
        session = Session(transport, deadline_s=5)
        session.hello()
        bridge.pull()
        plug.clear()
        start = time.monotonic()
        with pytest.raises(LinkError, match="went away"):
            session.stats()
        assert time.monotonic() - start < 4
