"""A board kept open from test to test, and brought back when it falls silent. Every wait has an end."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from mcugrad.board import Board, find_board, load_boards, open_board
from mcugrad.board.flash import AUTO, flash
from mcugrad.errors import LinkError, McugradError, PortPermissionError, UnavailableError
from mcugrad.hil.board_map import Place
from mcugrad.hil.outcome import FlashFailedError, WrongBoardError
from mcugrad.link import Caps, Session, Transport

ALIVE_S = 5.0
"""A board that was well answers HELLO within this; one that does not is opened again."""

RETURN_S = 10.0
"""The port of a board that was flashed, or had its power taken away, is back within this."""

_POWER_S = 60.0
_POLL_S = 0.2


class LiveBoard:
    """The board at ``place``. ``facts``: its sizes; ``line``: the open line; ``caps``: what it said of itself.

    Making one flashes the board where ``place`` says so, opens it and says HELLO. Raises FlashFailedError, UnavailableError,
    PortBusyError, PortPermissionError, WrongBoardError, LinkError. ``deadline_s`` bounds every wait for the board.
    """

    facts: Board
    line: Transport
    caps: Caps

    def __init__(self, place: Place, deadline_s: float, write: Callable[[Place], None]) -> None:
        self.place = place
        self.name = place.name
        self._deadline_s = deadline_s
        self._opened = contextlib.ExitStack()
        self._gone: McugradError | None = None
        if place.flash:
            write(place)
        self._open(RETURN_S if place.flash else 0.0)

    def session(self) -> Session:
        """A session of its own for a test. A board that is silent is opened anew, once; if that fails, every later call fails at once."""
        if self._gone is not None:
            raise self._gone
        try:
            Session(self.line, min(ALIVE_S, self._deadline_s)).hello()
        except LinkError:
            self._revive()
        session = Session(self.line, self._deadline_s)
        session.hello()
        return session

    def close(self) -> None:
        """Give the line back, end the emulator. A second call does nothing."""
        self._opened.close()

    def _open(self, return_s: float) -> None:
        """Open the line, wait ``return_s`` for the port to be there, and say HELLO."""
        try:
            self.facts, self.line = self._opened.enter_context(self._line_within(return_s))
            self.caps = Session(self.line, self._deadline_s).hello()
            self.facts = self._known()
        except BaseException:
            self.close()
            raise

    @contextlib.contextmanager
    def _line_within(self, return_s: float) -> Iterator[tuple[Board, Transport]]:
        end = time.monotonic() + return_s
        with contextlib.ExitStack() as stack:
            while True:
                try:
                    opened = stack.enter_context(open_board(self.place.spec))
                    break
                except (UnavailableError, PortPermissionError):
                    if time.monotonic() >= end:
                        raise
                    time.sleep(_POLL_S)
            yield opened

    def _known(self) -> Board:
        """The facts of the board that answers, where a port alone does not tell them."""
        if not self.place.port:
            return self.facts
        if self.place.board and self.caps.board != self.place.board:
            raise WrongBoardError(
                f"{self.caps.board} answers on {self.place.port}, the map says {self.place.board} for {self.name}",
                "correct the map, or flash the board",
            )
        return find_board(self.caps.board) if self.caps.board in load_boards() else replace(self.facts, name=self.name)

    def _revive(self) -> None:
        self.close()
        try:
            if self.place.power:
                _cycle_power(self.place)
            self._open(RETURN_S if self.place.power else 0.0)
        except McugradError as e:
            self._gone = e
            raise


def _cycle_power(place: Place) -> None:
    try:
        done = subprocess.run(place.power, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_POWER_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as e:
        raise UnavailableError(f"the power command of {place.name} cannot be run: {e}", "correct power in the map") from None
    if done.returncode:
        said = (done.stderr + done.stdout).strip().splitlines() or ["no message"]
        raise UnavailableError(f"the power command of {place.name} ended with {done.returncode}: {said[0]}", "run it by hand")


def flash_place(place: Place) -> None:
    """Write the trainer firmware of ``place``. Whatever goes wrong is a FlashFailedError."""
    try:
        flash(find_board(place.board), AUTO, place.probe or None, lambda _: None)
    except McugradError as e:
        raise FlashFailedError(f"flashing {place.name} failed: {e.text}", e.hint) from e
