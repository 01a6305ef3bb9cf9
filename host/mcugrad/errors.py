"""Every error that mcugrad raises on purpose: one tree, each class with the exit code of the command line."""

from __future__ import annotations


class McugradError(Exception):
    """Base of all. ``text`` names the value and the limit, ``hint`` the next move."""

    exit_code = 1
    name = "internal"

    def __init__(self, text: str, hint: str = "") -> None:
        super().__init__(text)
        self.text = text
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.text}: {self.hint}" if self.hint else self.text


class UsageError(McugradError):
    """An option or a scheme that cannot be meant."""

    exit_code = 2
    name = "usage"


class ModelError(McugradError):
    """The model file is damaged or not supported."""

    exit_code = 3
    name = "model"


class DataError(McugradError):
    """The data set is damaged or does not fit the model."""

    exit_code = 4
    name = "data"


class DivergedError(McugradError):
    """Training diverged."""

    exit_code = 5
    name = "diverged"


class PlanError(McugradError):
    """A plan or a checkpoint that does not belong to this firmware or model."""

    exit_code = 6
    name = "plan"


class VerifyError(McugradError):
    """Two executors that must agree do not, or a gradient is worse than its bound."""

    exit_code = 7
    name = "verify"


class FitError(McugradError):
    """The plan does not fit the board."""

    exit_code = 8
    name = "fit"


class UnavailableError(McugradError):
    """A tool or a board is missing."""

    exit_code = 69
    name = "unavailable"


class LinkError(McugradError):
    """The serial link failed."""

    exit_code = 75
    name = "link"


class PortBusyError(LinkError):
    """Another program holds the port."""

    exit_code = 73
    name = "port_busy"


class PortPermissionError(LinkError):
    """The port exists and may not be opened."""

    exit_code = 77
    name = "permission"


class DeviceError(LinkError):
    """The device answered with an error code. ``code`` is MG_ERR_…, ``step`` the index of a step or -1."""

    exit_code = 6
    name = "device"

    def __init__(self, text: str, hint: str = "", code: int = 0, step: int = -1) -> None:
        super().__init__(text, hint)
        self.code = code
        self.step = step
