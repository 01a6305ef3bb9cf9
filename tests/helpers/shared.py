"""Real models and data that stand beside the checkout, where they do."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcugrad.paths import root

SHARED = root().parent / "shared" / "data"


def shared(path: str) -> Path:
    """A file or folder of ../shared/data; skips the test where it is absent."""
    found = SHARED / path
    if not found.exists():
        pytest.skip(f"{found} is not there")
    return found
