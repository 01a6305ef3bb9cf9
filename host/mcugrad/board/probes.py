"""Debug probes on USB: found without any flashing tool, so that what is wrong with one has a name and a device node."""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass
from pathlib import Path

from mcugrad.board.ports import PROBES, list_ports
from mcugrad.errors import PortPermissionError, UnavailableError, UsageError

SYSFS = Path("/sys/bus/usb/devices")
NODES = Path("/dev/bus/usb")

_SEGGER = 0x1366


@dataclass(frozen=True, slots=True)
class Probe:
    """One debug probe. ``id`` is its USB serial number; ``node`` the device that a tool opens, empty where that is not known.

    ``port`` is the serial port that comes with it, empty where there is none.
    """

    id: str
    name: str
    usb_id: str
    node: str
    port: str

    @property
    def accessible(self) -> bool:
        """Whether this user may open it."""
        return not self.node or not Path(self.node).exists() or os.access(self.node, os.R_OK | os.W_OK)

    def __str__(self) -> str:
        return f"{self.id} ({self.name})"


def list_probes() -> tuple[Probe, ...]:
    """All debug probes that are plugged in, by their IDs."""
    ports = {p.serial_number: p.device for p in list_ports() if p.serial_number}
    if SYSFS.is_dir():
        found = [probe for folder in SYSFS.iterdir() if (probe := _of_sysfs(folder, ports)) is not None]
    else:  # no Linux: a probe with a serial port is known by it
        found = [Probe(_plain_id(p.usb_id, p.serial_number), p.probe, p.usb_id, "", p.device) for p in list_ports() if p.probe]
    return tuple(sorted(found, key=lambda p: p.id))


def choose_probe(wanted: str | None) -> Probe:
    """The probe whose ID is or holds ``wanted``, or the only one there is.

    Raises UnavailableError (none is there), UsageError (several, or none of that ID), PortPermissionError (it may not be opened).
    """
    probes = list_probes()
    if not probes:
        raise UnavailableError(
            "no debug probe is connected", "plug in the board's USB socket of the debugger, with a cable that carries data, not only power"
        )
    listed = ", ".join(map(str, probes))
    exact = [p for p in probes if p.id == wanted]
    found = exact or [p for p in probes if wanted is None or wanted.lower() in p.id.lower()]
    if not found:
        near = difflib.get_close_matches(wanted or "", [p.id for p in probes], 1)
        raise UsageError(f"there is no probe {wanted!r}", (f"did you mean {near[0]}? " if near else "") + f"connected: {listed}")
    if len(found) > 1:
        raise UsageError(f"{len(found)} debug probes are connected: {', '.join(map(str, found))}", "choose one with --probe ID")
    if not found[0].accessible:
        raise no_permission(found[0])
    return found[0]


def no_permission(probe: Probe) -> PortPermissionError:
    """The error of a probe that may not be opened, with its device node and the udev rule that opens it."""
    rule = f'SUBSYSTEM=="usb", ATTR{{idVendor}}=="{probe.usb_id[:4]}", MODE="0660", TAG+="uaccess"'
    return PortPermissionError(
        f"no permission to open {probe.node or 'the device'} of probe {probe}",
        f"as root write {rule} into /etc/udev/rules.d/70-mcugrad.rules, run udevadm control --reload && udevadm trigger, plug it in again; "
        "its serial port needs the group dialout (sudo usermod -aG dialout $USER)",
    )


def _of_sysfs(folder: Path, ports: dict[str, str]) -> Probe | None:
    """The probe of one entry of sysfs; None where it is another device, or an interface, or is just being pulled out."""
    try:
        usb = tuple(int(_text(folder, name), 16) for name in ("idVendor", "idProduct"))
        product = _text(folder, "product") if (folder / "product").exists() else ""
        name = PROBES.get((usb[0], usb[1]), product if "CMSIS-DAP" in product else "")
        if not name:
            return None
        serial = _text(folder, "serial")
        node = NODES / f"{int(_text(folder, 'busnum')):03}" / f"{int(_text(folder, 'devnum')):03}"
    except (OSError, ValueError):
        return None
    usb_id = f"{usb[0]:04x}:{usb[1]:04x}"
    return Probe(_plain_id(usb_id, serial), name, usb_id, str(node), ports.get(serial, ""))


def _plain_id(usb_id: str, serial: str) -> str:
    """The ID as the tools write it: those of J-Link are numbers."""
    return serial.lstrip("0") if usb_id.startswith(f"{_SEGGER:04x}") else serial


def _text(folder: Path, name: str) -> str:
    return (folder / name).read_text(encoding="utf-8", errors="replace").strip()
