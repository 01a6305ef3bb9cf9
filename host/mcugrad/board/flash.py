"""Firmware into the flash of a real board: written by pyOCD or OpenOCD, read back, compared here byte by byte.

No tool is believed: some print an error and exit with 0. What counts is what stands in the flash.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from mcugrad.board.build import image_bytes
from mcugrad.board.probes import Probe, choose_probe, no_permission
from mcugrad.board.table import Board, Flasher, Kind
from mcugrad.errors import McugradError, UnavailableError, UsageError, VerifyError

AUTO = "auto"

_IMAGE, _BACK = "image.bin", "back.bin"
_TIMEOUT_S = 300.0
_NO_PERMISSION = re.compile(r"permission denied|access denied|insufficient permission|LIBUSB_ERROR_ACCESS|EACCES", re.I)
_NO_TARGET = re.compile(r"target type \S+ not recognized", re.I)
_ERROR = re.compile(r"\b(error|fail(ed|ure)?|critical|cannot|unable|no (connected|available))\b|^\d+ [EC] ", re.I)

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Job:
    """One board on one probe, and how to connect."""

    board: Board
    flasher: Flasher
    probe: Probe
    under_reset: bool
    size: int


@dataclass(frozen=True, slots=True)
class Backend:
    """A flashing tool. ``find`` gives the start of its command line, empty where it is missing.

    ``write`` and ``read`` give the arguments that write _IMAGE to the flash and that read its ``size`` bytes into _BACK.
    """

    name: str
    get: str
    find: Callable[[], list[str]]
    write: Callable[[Job], list[str]]
    read: Callable[[Job], list[str]]


@dataclass(frozen=True, slots=True)
class Flashed:
    """What was done. ``size`` in bytes, all read back; ``under_reset``: only the second try, with the reset line held, went well."""

    backend: str
    probe: Probe
    size: int
    under_reset: bool


# ---- the tools ------------------------------------------------------------------------------------------------------


def _find_pyocd() -> list[str]:
    path = shutil.which("pyocd")
    if path:
        return [path]
    return [sys.executable, "-m", "pyocd"] if importlib.util.find_spec("pyocd") else []


def _pyocd_connect(job: Job) -> list[str]:
    under = ["--connect", "under-reset"] if job.under_reset else []
    return ["--no-config", "--no-wait", "--uid", job.probe.id, "--target", job.flasher.pyocd, *under]


def _pyocd_write(job: Job) -> list[str]:
    where = ["--erase", "sector", "--format", "bin", "--base-address", hex(job.flasher.base)]
    return ["load", *_pyocd_connect(job), *where, _IMAGE]


def _pyocd_read(job: Job) -> list[str]:
    save = f"savemem {job.flasher.base:#x} {job.size} {_BACK}"
    return ["commander", *_pyocd_connect(job), "--command", save, "--command", "reset"]


def _find_openocd() -> list[str]:
    path = shutil.which("openocd")
    return [path] if path else []


def _openocd(job: Job, *commands: str) -> list[str]:
    setup = [part for entry in job.flasher.openocd for part in (("-f" if entry.endswith(".cfg") else "-c"), entry)]
    under = ["reset_config srst_only srst_nogate connect_assert_srst"] if job.under_reset else []
    said = [f"adapter serial {job.probe.id}", *under, "init", "reset halt", *commands, "reset run", "shutdown"]
    return [*setup, *(part for command in said for part in ("-c", command))]


def _openocd_write(job: Job) -> list[str]:
    return _openocd(job, f"flash write_image erase {_IMAGE} {job.flasher.base:#x} bin")


def _openocd_read(job: Job) -> list[str]:
    return _openocd(job, f"dump_image {_BACK} {job.flasher.base:#x} {job.size}")


BACKENDS: Mapping[str, Backend] = MappingProxyType(
    {
        "pyocd": Backend("pyocd", "pip install 'mcugrad[flash]'", _find_pyocd, _pyocd_write, _pyocd_read),
        "openocd": Backend("openocd", "apt install openocd", _find_openocd, _openocd_write, _openocd_read),
    }
)
"""In the order in which auto tries them."""


# ---- choice ---------------------------------------------------------------------------------------------------------


def flasher_of(board: Board) -> Flasher:
    """How a board is flashed. Raises UsageError where it needs none: it is emulated, or a process."""
    if board.kind is not Kind.HARDWARE or board.flasher is None:
        raise UsageError(
            f"board {board.name} needs no flashing: its image is started where it is used",
            f"mcugrad train … --board {board.name} builds and runs it; mcugrad boards lists the hardware",
        )
    return board.flasher


def choose_backend(name: str, say: Say) -> tuple[Backend, list[str]]:
    """A back end and the start of its command line. ``name``: auto or one of BACKENDS. Raises UnavailableError where it is missing."""
    tried = list(BACKENDS.values()) if name == AUTO else [BACKENDS[name]]
    commands = {b.name: b.find() for b in tried}
    if name == AUTO:
        found = [f"{n} ({' '.join(c) or 'missing'})" for n, c in commands.items()]
        say(f"back ends, in the order of auto: {', '.join(found)}")
    for backend in tried:
        if commands[backend.name]:
            return backend, commands[backend.name]
    missing = "no flashing tool is installed" if name == AUTO else f"{name} is not installed"
    raise UnavailableError(missing, "back ends: " + "; ".join(f"{b.name}: {b.get}" for b in BACKENDS.values()))


# ---- the work -------------------------------------------------------------------------------------------------------


def flash(board: Board, backend: str, probe: str | None, say: Say) -> Flashed:
    """Build the trainer of ``board``, write it, read it back and compare; the board runs it then.

    A try that fails is repeated once with the reset line held. Raises UsageError, UnavailableError (69), PortPermissionError (77),
    VerifyError (7, the flash holds other bytes than the image), and what Board.build raises.
    """
    flasher = flasher_of(board)
    tool, command = choose_backend(backend, say)
    chosen = choose_probe(probe)
    image = image_bytes(board.build())
    say(f"{len(image):,} bytes for {board.name} through {chosen} with {tool.name}")
    try:
        return _twice(tool, command, Job(board, flasher, chosen, False, len(image)), image, say)
    except KeyboardInterrupt:
        say(f"stopped: the flash of {board.name} may be half written, flash it again")
        raise


def _twice(tool: Backend, command: list[str], job: Job, image: bytes, say: Say) -> Flashed:
    try:
        _once(tool, command, job, image)
    except _TryAgain as first:
        say(f"{first.error.text}; second try with the reset line held (connect under reset)")
        try:
            _once(tool, command, replace(job, under_reset=True), image)
        except _TryAgain as second:
            raise second.error from None
        return Flashed(tool.name, job.probe, job.size, True)
    return Flashed(tool.name, job.probe, job.size, False)


class _TryAgain(Exception):
    """A failure that another way to connect may cure."""

    def __init__(self, error: McugradError) -> None:
        super().__init__(str(error))
        self.error = error


def _once(tool: Backend, command: list[str], job: Job, image: bytes) -> None:
    with tempfile.TemporaryDirectory(prefix="mcugrad-flash-") as name:
        folder = Path(name)
        (folder / _IMAGE).write_bytes(image)
        written = _run(tool, [*command, *tool.write(job)], job, folder)
        said = _run(tool, [*command, *tool.read(job)], job, folder)
        back = (folder / _BACK).read_bytes() if (folder / _BACK).exists() else b""
    if len(back) < len(image):
        error = _error_line(said) or _error_line(written) or "no message"
        raise _TryAgain(UnavailableError(f"{tool.name} read back {len(back):,} of {len(image):,} bytes: {error}", _advice(tool)))
    if back[: len(image)] != image:
        raise _TryAgain(_differs(tool, job, image, back, _error_line(written)))


def _differs(tool: Backend, job: Job, image: bytes, back: bytes, said: str) -> VerifyError:
    wrong = [i for i, (a, b) in enumerate(zip(image, back, strict=False)) if a != b]
    at = wrong[0]
    return VerifyError(
        f"{len(wrong):,} of {len(image):,} bytes in the flash of {job.board.name} are not those of the image, the first at "
        f"{job.flasher.base + at:#010x}: {back[at]:#04x}, not {image[at]:#04x}" + (f"; {tool.name} said: {said}" if said else ""),
        "flash again; where that stays, the flash is write protected or worn, or [flash] in board.toml names another chip",
    )


def _run(tool: Backend, command: list[str], job: Job, folder: Path) -> str:
    """What a tool said, where it exits with 0."""
    try:
        done = subprocess.run(
            command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"{tool.name} did not end within {_TIMEOUT_S:.0f} s", "unplug the board, plug it in again") from None
    except OSError as e:
        raise UnavailableError(f"{tool.name} does not start: {e.strerror}: {command[0]}", f"install it again: {tool.get}") from None
    said = done.stderr + "\n" + done.stdout
    if _NO_PERMISSION.search(said):
        raise no_permission(job.probe)
    if _NO_TARGET.search(said):
        pack = f"pyocd pack install {job.flasher.pyocd}" if job.flasher.pyocd_pack else "install a newer pyocd"
        raise UnavailableError(f"{tool.name} does not know the target {job.flasher.pyocd}", f"{pack}, or --backend openocd")
    if done.returncode != 0:
        error = _error_line(said) or "no message"
        raise _TryAgain(UnavailableError(f"{tool.name} ended with {done.returncode}: {error}", _advice(tool)))
    return said


def _advice(tool: Backend) -> str:
    other = next(b for b in BACKENDS.values() if b is not tool)
    return f"is the board powered, and does no debugger or IDE hold the probe? another tool: --backend {other.name}"


def _error_line(said: str) -> str:
    """The first line that tells of an error, without the time and the place that tools add."""
    lines = [line.strip() for line in said.splitlines()]
    found = next((line for line in lines if _ERROR.search(line)), "")
    return re.sub(r"^\d+ [EC] |\s*\[\w+\]$", "", found)
