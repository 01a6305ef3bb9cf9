"""A C frame library, and the host board with a tiny plan."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.c_frames import CFrames
from helpers.modelled_board import build_modelled_board
from mcugrad.board import Firmware, find_board, open_board
from mcugrad.link import Session, Transport
from mcugrad.paths import firmware_dir


@pytest.fixture(scope="session")
def c_frames(tmp_path_factory: pytest.TempPathFactory) -> CFrames:
    out = tmp_path_factory.mktemp("frames") / "frames.so"
    fw = firmware_dir()
    sources = (fw / "link" / "frame.c", fw / "core" / "crc32.c")
    subprocess.run(["cc", "-std=c11", "-O1", "-shared", "-fPIC", f"-I{fw / 'include'}", *map(str, sources), "-o", str(out)], check=True)
    return CFrames(out)


@pytest.fixture(scope="session")
def host_firmware() -> Firmware:
    return find_board("host").build()


@pytest.fixture
def line(host_firmware: Firmware) -> Iterator[Transport]:
    """A fresh host board's line."""
    with open_board("host", host_firmware) as (_, transport):
        yield transport


@pytest.fixture
def session(line: Transport) -> Session:
    """An open session with a fresh host board."""
    out = Session(line, deadline_s=5.0, retry_s=0.1)
    out.hello()
    return out


@pytest.fixture(scope="session")
def modelled_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a ``ModelledBoard`` is made of."""
    return build_modelled_board(tmp_path_factory.mktemp("modelled"))
