"""Where the firmware sources and the boards are: in the checkout, or beside the installed package."""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).resolve().parent


def root() -> Path:
    """The folder that has firmware/ and boards/."""
    checkout = _HERE.parent.parent
    return checkout if (checkout / "firmware" / "ops.def").exists() else _HERE / "_source"


def firmware_dir() -> Path:
    return root() / "firmware"


def boards_dir() -> Path:
    return root() / "boards"
