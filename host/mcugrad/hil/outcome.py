"""What became of a test on a board: one word, and never one for the other."""

from __future__ import annotations

from enum import Enum

from mcugrad.errors import DeviceError, LinkError, McugradError, PortBusyError, PortPermissionError, UnavailableError


class Outcome(Enum):
    """The value of the property ``mcugrad_outcome`` in a report."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    FLASH_ERROR = "flash_error"
    NO_PORT = "no_port"
    BLOCKED = "blocked"
    TIMEOUT = "timeout"


class FlashFailedError(McugradError):
    """The firmware is not on the board: nothing that the board says or does not say means anything."""

    exit_code = 69
    name = "flash_error"


class WrongBoardError(McugradError):
    """Another board answers than the map says."""

    exit_code = 69
    name = "wrong_board"


def outcome_of(error: BaseException) -> Outcome:
    """What an exception makes of a test. Whatever is not the board's, its port's or its line's fault is FAILED."""
    for kind, outcome in _OUTCOMES:
        if isinstance(error, kind):
            return outcome
    return Outcome.FAILED


_OUTCOMES = (
    (FlashFailedError, Outcome.FLASH_ERROR),
    (UnavailableError, Outcome.NO_PORT),
    (PortBusyError, Outcome.BLOCKED),
    (PortPermissionError, Outcome.BLOCKED),
    (WrongBoardError, Outcome.BLOCKED),
    (DeviceError, Outcome.FAILED),
    (LinkError, Outcome.TIMEOUT),
)
"""In this order: the first that fits. A DeviceError is an answer, so the line is well."""
