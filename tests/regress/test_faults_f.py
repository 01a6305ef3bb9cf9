"""Section F of the faults list: artifacts of different builds or runs are never mixed. Power cuts and lost state: test_checkpoint*.py."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.cli import mcugrad
from helpers.tiny_plan import patched, tiny_plan
from mcugrad.board import open_board
from mcugrad.errors import DeviceError, PlanError
from mcugrad.link import Command, Session
from mcugrad.paths import root
from mcugrad.plan.opsdef import ops_hash
from mcugrad.training.checkpoint import Checkpoint, write_checkpoint

MODEL = root() / "examples" / "watch" / "watch_base.tflite"
OPS_HASH_AT = 8
OTHER = 0x0DDBA110


@pytest.fixture
def session() -> Iterator[Session]:
    """A host board with a plan."""
    with open_board("host") as (_, line):
        out = Session(line)
        out.hello()
        out.load_plan(tiny_plan())
        yield out


def refuses(session: Session, plan: bytes, text: str) -> None:
    """Exit 6, and the plan before is still loaded: nothing was sent."""
    with pytest.raises(PlanError, match=text) as e:
        session.load_plan(plan)
    assert e.value.exit_code == 6
    assert len(session.read_state()) == 56


def test_f104_a_firmware_of_another_build_is_named(session: Session) -> None:
    session._caps = replace(session.caps, ops_hash=OTHER)
    refuses(
        session, tiny_plan(), rf"^the firmware of host .* step table 0ddba110\) is of another build .*{ops_hash():08x}.*flash the firmware"
    )


def test_f104_a_plan_of_another_build_is_named(session: Session) -> None:
    refuses(
        session, patched(tiny_plan(), OPS_HASH_AT, OTHER), r"^the plan \(step table 0ddba110\) is of another build .*: make the plan again$"
    )


def test_f104_three_builds(session: Session) -> None:
    session._caps = replace(session.caps, ops_hash=OTHER + 1)
    refuses(
        session,
        patched(tiny_plan(), OPS_HASH_AT, OTHER),
        rf"0ddba110.*0ddba111.*{ops_hash():08x}.*are of different builds.*then make the plan",
    )


def test_f104_the_device_refuses_too(session: Session) -> None:
    plan = patched(tiny_plan(), OPS_HASH_AT, OTHER)
    session._call(Command.LOAD_BEGIN, struct.pack("<I", len(plan)))
    session._stream(Command.LOAD_DATA, plan, 0, 32)
    with pytest.raises(DeviceError, match=rf"MG_ERR_OPS.*0x0ddba110.*0x{ops_hash():08x}") as e:
        session._call(Command.LOAD_END, struct.pack("<I", zlib.crc32(plan)))
    assert e.value.exit_code == 6


@pytest.mark.parametrize(
    ("plan_crc", "model", "texts"),
    [(1, None, ["belongs to plan 00000001", "makes [0-9a-f]{8}"]), (1, 2, ["was trained from model 00000002", "is [0-9a-f]{8}"])],
)
def test_f104_a_checkpoint_file_of_another_model_or_plan_is_named(
    tmp_path: Path, plan_crc: int, model: int | None, texts: list[str]
) -> None:
    path = tmp_path / "old.ckpt"
    here = zlib.crc32(MODEL.read_bytes())
    write_checkpoint(path, Checkpoint(plan_crc, here if model is None else model, "head", 7, "xent", 2, 1, bytes(720)))
    mcugrad("export", MODEL, "--checkpoint", path, "--out", tmp_path / "x.tflite").fails(6, *texts)
