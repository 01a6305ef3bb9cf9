"""The device checks everything itself: these commands go past the host's checks."""

from __future__ import annotations

import math
import re
import struct
import zlib

import pytest

from helpers.tiny_plan import CLASSES, patched, samples, tiny_plan
from mcugrad.errors import DataError, DeviceError, FitError, McugradError
from mcugrad.link import Command, Region, Session
from mcugrad.link.texts import TEXTS, device_error
from mcugrad.paths import firmware_dir

OPS_HASH_AT = 8
VERSION_AT = 4


def code_of(name: str) -> int:
    return next(code for code, text in TEXTS.items() if text.name == name)


def refused(session: Session, name: str, command: Command, body: bytes = b"") -> McugradError:
    """Send a raw command and require the error ``name``; the session must live on."""
    with pytest.raises(McugradError, match=name) as e:
        session._call(command, body)
    assert session.stats().damaged_frames == 0
    return e.value


def send_plan(session: Session, plan: bytes, crc: int | None = None) -> bytes:
    session._call(Command.LOAD_BEGIN, struct.pack("<I", len(plan)))
    for at in range(0, len(plan), 32):
        session._call(Command.LOAD_DATA, struct.pack("<I", at) + plan[at : at + 32])
    return session._call(Command.LOAD_END, struct.pack("<I", zlib.crc32(plan) if crc is None else crc))


@pytest.fixture
def loaded(session: Session) -> Session:
    session.load_plan(tiny_plan())
    return session


NEED_A_PLAN = (
    *(Command.SAMPLE, Command.TRAIN, Command.PREDICT, Command.COMMIT),
    *(Command.READ, Command.WRITE_STATE, Command.RESET, Command.TRACE),
)


@pytest.mark.parametrize("command", NEED_A_PLAN)
def test_without_a_plan(session: Session, command: Command) -> None:
    bodies = {
        Command.TRAIN: bytes(12),
        Command.READ: bytes(12),
        Command.SAMPLE: bytes(5),
        Command.WRITE_STATE: bytes(5),
        Command.TRACE: b"\1",
    }
    refused(session, "MG_LINK_ERR_NO_PLAN", command, bodies.get(command, b""))


@pytest.mark.parametrize(
    ("command", "body"),
    [
        (Command.TRAIN, 11),
        (Command.TRAIN, 13),
        (Command.READ, 0),
        (Command.SAMPLE, 4),
        (Command.PREDICT, 1),
        (Command.COMMIT, 4),
        (Command.LOAD_BEGIN, 3),
        (Command.STATS, 9),
    ],
)
def test_wrong_length(loaded: Session, command: Command, body: int) -> None:
    refused(loaded, "MG_LINK_ERR_LENGTH", command, bytes(body))


@pytest.mark.parametrize(
    ("region", "offset", "n", "name"),
    [
        (5, 0, 1, "MG_LINK_ERR_REGION"),
        (255, 0, 0, "MG_LINK_ERR_REGION"),
        (4, 0, 4, "MG_LINK_ERR_NO_TRACE"),
        (2, 0, 10_000, "MG_LINK_ERR_LENGTH"),
        (2, 50, 1000, "MG_LINK_ERR_RANGE"),
        (2, 0xFFFFFFFF, 1, "MG_LINK_ERR_RANGE"),
        (0, 0xFFFFFFFF, 1000, "MG_LINK_ERR_RANGE"),
        (1, 1 << 31, 0, "MG_LINK_ERR_RANGE"),
    ],
)
def test_reads_outside(loaded: Session, region: int, offset: int, n: int, name: str) -> None:
    refused(loaded, name, Command.READ, struct.pack("<BxxxII", region, offset, n))


@pytest.mark.parametrize("offset", [56, 57, 0xFFFFFFFF, 0xFFFFFFF0])
def test_state_writes_outside(loaded: Session, offset: int) -> None:
    refused(loaded, "MG_LINK_ERR_RANGE", Command.WRITE_STATE, struct.pack("<I", offset) + bytes(32))


@pytest.mark.parametrize(
    ("label", "lr", "skip", "name"),
    [
        (CLASSES, 0.1, 0.0, "MG_ERR_LABEL"),
        (0xFFFF, 0.1, 0.0, "MG_ERR_LABEL"),
        (0, math.nan, 0.0, "MG_ERR_ARG"),
        (0, math.inf, 0.0, "MG_ERR_ARG"),
        (0, -0.1, 0.0, "MG_ERR_ARG"),
        (0, 0.1, math.nan, "MG_ERR_ARG"),
    ],
)
def test_bad_training_arguments_change_nothing(loaded: Session, label: int, lr: float, skip: float, name: str) -> None:
    before = loaded.read_state()
    loaded.sample(samples(1)[0][0])
    e = refused(loaded, name, Command.TRAIN, struct.pack("<Hxxff", label, lr, skip))
    assert isinstance(e, DeviceError) and e.code == code_of(name)
    assert loaded.read_state() == before


def test_a_label_is_refused_with_value_and_limit(loaded: Session) -> None:
    loaded.sample(samples(1)[0][0])
    with pytest.raises(DeviceError, match="label 11, the model has 3 classes"):
        loaded.train(11, 0.1, 0.0)


def test_training_needs_the_whole_sample(loaded: Session) -> None:
    refused(loaded, "MG_LINK_ERR_SAMPLE", Command.TRAIN, struct.pack("<Hxxff", 0, 0.1, 0.0))
    loaded._call(Command.SAMPLE, struct.pack("<I", 0) + bytes(3))
    refused(loaded, "MG_LINK_ERR_SAMPLE", Command.PREDICT)
    refused(loaded, "MG_LINK_ERR_ORDER", Command.SAMPLE, struct.pack("<I", 1) + bytes(1))
    refused(loaded, "MG_LINK_ERR_RANGE", Command.SAMPLE, struct.pack("<I", 0) + bytes(5))
    refused(loaded, "MG_LINK_ERR_ORDER", Command.SAMPLE, struct.pack("<I", 0xFFFFFFFF) + bytes(5))


def test_a_refused_sample_stops_the_stream_and_trains_nothing(loaded: Session) -> None:
    loaded.sample(samples(1)[0][0])
    before = loaded.read_state()
    with pytest.raises(DeviceError, match="MG_LINK_ERR_RANGE"):
        list(loaded.train_stream([(bytes(9), 0, 0.5)] * 5, 0.0))
    assert loaded.read_state() == before


@pytest.mark.parametrize(
    ("plan", "name"),
    [
        (patched(tiny_plan(), OPS_HASH_AT, 0xDEADBEEF), "MG_ERR_OPS"),
        (patched(tiny_plan(), VERSION_AT, 116 << 16 | 3), "MG_ERR_VERSION"),
        (tiny_plan()[:-16], "MG_ERR_SIZE"),
        (tiny_plan()[:100], "MG_ERR_SIZE"),
        (tiny_plan()[:200] + b"\xff" + tiny_plan()[201:], "MG_ERR_CRC"),
        (bytes(64), "MG_ERR"),
        (tiny_plan(arena_extra=64 << 20), "MG_ERR_NOMEM"),
    ],
)
def test_a_bad_plan_is_refused_and_none_is_loaded(loaded: Session, plan: bytes, name: str) -> None:
    with pytest.raises(McugradError, match=name) as e:
        send_plan(loaded, plan)
    assert isinstance(e.value, FitError) == (name == "MG_ERR_NOMEM")
    refused(loaded, "MG_LINK_ERR_NO_PLAN", Command.RESET)
    loaded.load_plan(tiny_plan())


def test_loading_out_of_order(session: Session) -> None:
    refused(session, "MG_LINK_ERR_ORDER", Command.LOAD_DATA, struct.pack("<I", 0) + bytes(4))
    refused(session, "MG_LINK_ERR_ORDER", Command.LOAD_END, bytes(4))
    refused(session, "MG_LINK_ERR_SLOT", Command.LOAD_BEGIN, struct.pack("<I", 0xFFFFFFFF))
    refused(session, "MG_LINK_ERR_SLOT", Command.LOAD_BEGIN, bytes(4))
    session._call(Command.LOAD_BEGIN, struct.pack("<I", 100))
    refused(session, "MG_LINK_ERR_ORDER", Command.LOAD_DATA, struct.pack("<I", 32) + bytes(4))
    refused(session, "MG_LINK_ERR_RANGE", Command.LOAD_DATA, struct.pack("<I", 0) + bytes(101))
    session._call(Command.LOAD_DATA, struct.pack("<I", 0) + bytes(31))
    refused(session, "MG_LINK_ERR_ORDER", Command.LOAD_DATA, struct.pack("<I", 31) + bytes(4))
    refused(session, "MG_LINK_ERR_ORDER", Command.LOAD_END, bytes(4))


def test_a_plan_that_changed_in_the_slot(session: Session) -> None:
    with pytest.raises(DeviceError, match="MG_LINK_ERR_TRANSFER"):
        send_plan(session, tiny_plan(), crc=1)


def test_the_trace_needs_room(session: Session) -> None:
    pool = session.caps.pool_bytes
    session.load_plan(tiny_plan(arena_extra=pool - 192))
    with pytest.raises(FitError, match=f"the board has {pool:,} to give"):
        session.trace_on()


def test_a_plan_for_a_larger_slot(session: Session) -> None:
    with pytest.raises(FitError, match="the plan slot of host has"):
        session.load_plan(bytes(session.caps.slot_bytes + 1))


def test_a_checkpoint_of_another_plan(loaded: Session) -> None:
    with pytest.raises(DataError, match="the checkpoint has 55 bytes, STATE of the loaded plan has 56"):
        loaded.write_state(bytes(55))


def test_unknown_commands(session: Session) -> None:
    session._post(0x7E, b"")  # type: ignore[arg-type]
    with pytest.raises(DeviceError, match="MG_LINK_ERR_TYPE"):
        while True:
            session._step()
            session._results(Command.STATS)


def test_reads_of_arena_and_const(loaded: Session) -> None:
    assert loaded.read(Region.ARENA, 0, 52) == b"\x55" * 52
    assert len(loaded.read(Region.CONST, 0, 24)) == 24


# ---- texts --------------------------------------------------------------------------------------------------------------


def test_every_code_of_the_device_has_a_text() -> None:
    found: dict[int, str] = {}
    for header in ("include/mcugrad.h", "link/session.h"):
        text = (firmware_dir() / header).read_text(encoding="utf-8")
        found |= {int(code): name for name, code in re.findall(r"^\s+(MG_(?:LINK_)?ERR_\w+) = (-\d+),", text, re.M)}
    assert len(found) > 25
    assert found == {code: text.name for code, text in TEXTS.items()}


@pytest.mark.parametrize("code", [*TEXTS, -999])
def test_every_text_can_be_printed(code: int) -> None:
    e = device_error(code, 3, 0x7FC00000, 12)
    assert e.hint and "{" not in e.text
    if isinstance(e, DeviceError):
        assert (e.code, e.step, e.exit_code) == (code, 3, 6)
