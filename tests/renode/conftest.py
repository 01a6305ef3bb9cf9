"""A stand-in for Renode on PATH."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mcugrad.board import renode

TESTS = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class FakeRenode:
    """``folder`` is first on PATH. Temporary files of this test are in ``temporary``."""

    folder: Path
    temporary: Path

    def started(self) -> dict[str, Any]:
        """The arguments and the process of the last start."""
        found: dict[str, Any] = json.loads((self.folder / "log").read_text())
        return found

    def kept(self) -> list[Path]:
        """What was left behind in the folder for temporary files."""
        return list(self.temporary.glob("mcugrad-*"))


@pytest.fixture
def fake_renode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeRenode:
    folder, temporary = tmp_path / "bin", tmp_path / "with a space"
    folder.mkdir()
    temporary.mkdir()
    program = folder / "renode"
    program.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(TESTS)!r})\nfrom renode.fake_renode import main\nmain(sys.argv[1:])\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_RENODE_LOG", str(folder / "log"))
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    renode._version.cache_clear()
    return FakeRenode(folder, temporary)
