"""A board in Renode: its machine from boards/<name>/renode.resc, its UART on a pty, no port open to anybody.

Renode's monitor stays on the console (`--console`), so it does not listen, and a pty has no address. A guard in Renode's process
group ends the whole group when our end of its standard input closes: nothing is left running, whatever becomes of us.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from mcugrad.board.table import Board
from mcugrad.errors import DeviceError, LinkError, UnavailableError
from mcugrad.link.transport import DEFAULT_BAUD, SerialTransport, Transport
from mcugrad.paths import boards_dir

GET_RENODE = "its portable archive, the container image antmicro/renode, or brew install renode"
"""How to get Renode; it is in no package registry."""

_START_S = 60.0
_STOP_S = 5.0
_VERSION_S = 60.0
_LAST_WORD_S = 0.5
_POLL_S = 0.05
_GUARD = 'exec 3<&0; "$@" <&3 & renode=$!; { cat <&3 >/dev/null; kill -KILL 0; } & wait "$renode"'
_REFUSED = re.compile(r"There was an error executing command|No such command or device|Could not tokenize|Could not find file")


def need_renode(board: Board) -> None:
    """Raise UnavailableError where Renode is missing, or older than ``board`` needs."""
    path = shutil.which("renode")
    if path is None:
        raise UnavailableError("renode is not on PATH", f"get it: {GET_RENODE}")
    found = _version(path)
    if found and found < board.renode_version:
        has, needs = (".".join(map(str, v)) for v in (found, board.renode_version))
        raise UnavailableError(f"{path} is Renode {has}, {board.name} needs {needs} or newer", f"get it: {GET_RENODE}")


@functools.cache
def _version(path: str) -> tuple[int, ...]:
    """(1, 16, 1) of "Renode v1.16.1.28123"; empty where Renode does not say."""
    try:
        said = subprocess.run(
            [path, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_VERSION_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as e:
        raise UnavailableError(f"{path} does not start: {e}", "run renode --version by hand") from None
    found = re.search(r"v(\d+)\.(\d+)\.(\d+)", said.stdout + said.stderr)
    return tuple(int(n) for n in found.groups()) if found else ()


def script(board: Board, image: Path, pty: Path) -> str:
    """The monitor commands that run ``image`` on ``board`` with its UART on ``pty``, which comes into being once all before it went well.

    A quantum of 0.1 ms is 100,000 instructions: how often the UART looks for bytes. The emulation never waits for the real time.
    """
    machine = boards_dir() / board.name / "renode.resc"
    return "\n".join(
        (
            f"$bin={path_of(image)}",
            f"include {path_of(machine)}",
            'emulation SetGlobalQuantum "0.0001"',
            "emulation SetGlobalAdvanceImmediately true",
            "logLevel 3",
            f'emulation CreateUartPtyTerminal "pty" "{pty}" true',
            f"connector Connect {board.renode_uart} pty",
            "start",
            "",
        )
    )


def path_of(path: Path) -> str:
    """``path`` as a word of Renode's monitor."""
    return "@" + str(path.absolute()).replace(" ", "\\ ")


@contextlib.contextmanager
def renode_process(board: Board, image: Path) -> Iterator[Transport]:
    """Run ``image`` in Renode; ends it on the way out. What Renode said is kept, and named, where something fails.

    Raises UnavailableError where Renode refuses the machine, ends, or takes over 60 s.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"mcugrad-{board.name}-"))
    log, pty, start = folder / "renode.log", folder / "line", folder / "start.resc"
    start.write_text(script(board, image, pty), encoding="utf-8")
    command = ["renode", "--console", "--disable-xwt", "--plain", "-e", f"include {path_of(start)}"]
    try:
        with log.open("wb") as said:
            process = subprocess.Popen(
                ["sh", "-c", _GUARD, "sh", *command], stdin=subprocess.PIPE, stdout=said, stderr=said, cwd=folder, start_new_session=True
            )
        with _ended(process):
            _await_line(process, pty, log, board)
            with contextlib.closing(SerialTransport(str(pty), DEFAULT_BAUD)) as transport:
                transport.name = board.name
                try:
                    yield transport
                except DeviceError:
                    raise
                except LinkError as e:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(_LAST_WORD_S)
                    if process.returncode is not None:
                        raise _failure(f"Renode ended with {process.returncode} while it ran {board.name}", log) from e
                    if _REFUSED.search(log.read_text(errors="replace")):
                        raise _failure(f"Renode refused {board.name}", log) from e
                    e.hint = f"{e.hint}; all that Renode said is in {log}"
                    raise
    except BaseException as e:
        if str(log) not in str(e):
            shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)


def _await_line(process: subprocess.Popen[bytes], pty: Path, log: Path, board: Board) -> None:
    """Return when the pty is there. Raises UnavailableError."""
    end = time.monotonic() + _START_S
    while not pty.exists():
        if process.poll() is not None:
            raise _failure(f"Renode ended with {process.returncode} before {board.name} ran", log)
        if _REFUSED.search(log.read_text(errors="replace")):
            raise _failure(f"Renode refused {board.name}", log)
        if time.monotonic() > end:
            raise _failure(f"Renode did not start {board.name} in {_START_S:.0f} s", log)
        time.sleep(_POLL_S)


def _failure(text: str, log: Path) -> UnavailableError:
    """The error with what Renode said: the line that refuses and the next one, which says why, or its last line."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    at = next((i for i, line in enumerate(lines) if _REFUSED.search(line)), None)
    said = " ".join(lines[-1:] if at is None else lines[at : at + 2]) or "no message"
    return UnavailableError(f"{text}: {said}", f"all that Renode said is in {log}")


@contextlib.contextmanager
def _ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """End the whole process group: Renode's launcher may be a script, and the guard is there too."""
    try:
        yield
    finally:
        _signal_group(process.pid, signal.SIGTERM)
        end = time.monotonic() + _STOP_S
        while _signal_group(process.pid, 0) and time.monotonic() < end:
            process.poll()
            time.sleep(_POLL_S)
        _signal_group(process.pid, signal.SIGKILL)
        assert process.stdin is not None
        process.stdin.close()
        process.wait()


def _signal_group(group: int, number: int) -> bool:
    """Whether there was anybody to signal."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True
