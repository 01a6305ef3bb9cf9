"""Serial ports of this machine."""

from __future__ import annotations

from dataclasses import dataclass

from serial.tools import list_ports as serial_ports

_PROBES = {
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
            probe=_PROBES.get((p.vid or 0, p.pid or 0), ""),
        )
        for p in serial_ports.comports()
    ]
    return sorted(ports, key=lambda p: (not p.probe, not p.usb_id, p.device))
