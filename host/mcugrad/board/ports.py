"""Serial ports of this machine."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from serial.tools import list_ports as serial_ports

from mcugrad.errors import DeviceError, LinkError, PortBusyError, PortPermissionError, UnavailableError, UsageError
from mcugrad.link.session import Session
from mcugrad.link.transport import Lines, SerialTransport

PROBE_S = 0.5
"""So long a port has to answer HELLO."""

PROBES = {
    (0x0483, 0x3748): "ST-LINK/V2",
    (0x0483, 0x374B): "ST-LINK/V2-1",
    (0x0483, 0x374E): "STLINK-V3",
    (0x0483, 0x374F): "STLINK-V3",
    (0x0483, 0x3753): "STLINK-V3",
    (0x1366, 0x0105): "SEGGER J-Link",
    (0x1366, 0x1015): "SEGGER J-Link",
    (0x1366, 0x1061): "SEGGER J-Link",
    (0x0D28, 0x0204): "DAPLink / CMSIS-DAP",
    (0x2E8A, 0x000C): "Raspberry Pi Debug Probe",
}
"""(vendor, product) on USB -> the debug probe."""


@dataclass(frozen=True, slots=True)
class Port:
    """One serial port. ``probe`` names the debug probe that it belongs to, or is empty."""

    device: str
    description: str
    usb_id: str
    serial_number: str
    probe: str


def list_ports() -> list[Port]:
    """All ports; those of debug probes, where a board is likely, come first."""
    ports = [
        Port(
            device=p.device,
            description="" if p.description in (None, "n/a") else p.description,
            usb_id=f"{p.vid:04x}:{p.pid:04x}" if p.vid is not None and p.pid is not None else "",
            serial_number=p.serial_number or "",
            probe=PROBES.get((p.vid or 0, p.pid or 0), ""),
        )
        for p in serial_ports.comports()
    ]
    return sorted(ports, key=lambda p: (not p.probe, not p.usb_id, p.device))


@dataclass(frozen=True, slots=True)
class Probed:
    """What came of a port. ``board`` is the name that HELLO told, empty where nothing answered; ``outcome`` is for people."""

    port: Port
    board: str
    outcome: str


def find_port(lines: Lines) -> str:
    """The one port of this machine whose board answers HELLO.

    ``lines``: DTR and RTS as each port is opened. Raises UsageError where several answer, UnavailableError where none does.
    """
    probed = [probe(port, lines) for port in list_ports()]
    found = [p for p in probed if p.board]
    if len(found) == 1:
        return found[0].port.device
    if found:
        answers = ", ".join(f"{p.port.device} ({p.board})" for p in found)
        raise UsageError(f"{len(found)} boards answer: {answers}", f"name one, for example --port {found[0].port.device}")
    tried = "; ".join(f"{p.port.device}: {p.outcome}" for p in probed) or "this machine has none"
    raise UnavailableError(f"no serial port answers HELLO ({tried})", _hint(probed))


def probe(port: Port, lines: Lines) -> Probed:
    """Send HELLO to ``port`` and nothing else. Ports of Bluetooth are not opened: that would connect to a device, and take long."""
    if is_bluetooth(port):
        return Probed(port, "", "Bluetooth, not tried")
    try:
        with contextlib.closing(SerialTransport(port.device, lines=lines, write_s=PROBE_S)) as line:
            board = Session(line, deadline_s=PROBE_S, retry_s=PROBE_S / 2).hello().board
    except PortBusyError as e:
        return Probed(port, "", e.text.removeprefix(f"port busy: {port.device} is "))
    except PortPermissionError:
        return Probed(port, "", "no permission")
    except DeviceError:
        return Probed(port, "", "a trainer of another version")
    except (LinkError, UnavailableError):
        return Probed(port, "", "no answer")
    return Probed(port, board, f"answers as {board}")


def is_bluetooth(port: Port) -> bool:
    """Whether a port is a Bluetooth connection, by the names that the systems give it."""
    return any(word in f"{port.device} {port.description}".lower() for word in ("bluetooth", "rfcomm", "bthenum"))


def finder(device: str) -> Callable[[], str | None]:
    """A function that tells where the device of port ``device`` is now, None while it is away. It may return with another name."""
    known = next((p for p in list_ports() if p.device == device), None)

    def find() -> str | None:
        if known is not None and known.usb_id:
            ports = [p for p in list_ports() if (p.usb_id, p.serial_number) == (known.usb_id, known.serial_number)]
            return next((p.device for p in ports if p.device == device), ports[0].device if len(ports) == 1 else None)
        return device if Path(device).exists() else None

    return find


def _hint(probed: list[Probed]) -> str:
    denied = next((p.port.device for p in probed if p.outcome == "no permission"), None)
    if denied is not None:
        return f"get permission first: --port {denied} says how"
    return "plug the board in, flash its trainer (mcugrad flash), press reset, and try again; or name the port with --port"
