"""Random frames against the firmware under AddressSanitizer and UndefinedBehaviorSanitizer."""

from __future__ import annotations

import random
import struct
import subprocess
import zlib

import pytest

from helpers.tiny_plan import tiny_plan
from mcugrad.board import Firmware, open_board
from mcugrad.errors import LinkError
from mcugrad.link import Command, Session
from mcugrad.link.frame import Frame, encode
from mcugrad.paths import root

NUMBERS = (0, 1, 2, 3, 4, 31, 32, 55, 56, 57, 116, 1028, 4096, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFC, 0xFFFFFFFF)


@pytest.fixture(scope="module")
def checked_firmware() -> Firmware:
    build = root() / "build" / "host-checked"
    if not (build / "build.ninja").exists():
        subprocess.run(
            ["cmake", "-S", str(root()), "-B", str(build), "-G", "Ninja", "-DMG_BOARD=host", "-DMG_SANITIZE=ON"],
            check=True,
            capture_output=True,
        )
    subprocess.run(["cmake", "--build", str(build), "--target", "trainer"], check=True, capture_output=True)
    return Firmware(build / "trainer", 0, 0)


def hostile_body(rng: random.Random, command: Command) -> bytes:
    words = b"".join(struct.pack("<I", rng.choice(NUMBERS)) for _ in range(rng.randrange(5)))
    body = words + rng.randbytes(rng.choice((0, 0, 1, 4, 32, 1020)))
    if command is Command.READ and rng.random() < 0.8:
        body = bytes((rng.randrange(6),)) + body[1:]
    return body[:1032]


@pytest.mark.parametrize("seed", range(3))
def test_random_commands_do_no_harm(checked_firmware: Firmware, seed: int) -> None:
    rng = random.Random(seed)
    with open_board("host", checked_firmware) as (_, line):
        session = Session(line, deadline_s=10.0)
        for round_ in range(3):
            session.hello()
            session.load_plan(tiny_plan())
            for _ in range(150):
                command = rng.choice([c for c in Command if c not in (Command.HELLO, Command.SYNC)])
                session._post(command, hostile_body(rng, command))
                session._settle()
            line.write(b"\0".join(rng.randbytes(rng.randrange(1500)) for _ in range(10)) + b"\0")
            line.write(encode(Frame(Command.HELLO, 0, rng.randbytes(round_ * 2))) + encode(Frame(Command.SYNC, 0, b"")))
        assert session.hello().board == "host"


@pytest.mark.parametrize("seed", range(3))
def test_random_plans_do_no_harm(checked_firmware: Firmware, seed: int) -> None:
    rng = random.Random(seed)
    with open_board("host", checked_firmware) as (_, line):
        session = Session(line, deadline_s=10.0)
        session.hello()
        for _ in range(150):
            plan = bytearray(tiny_plan())
            for _ in range(rng.randrange(1, 4)):
                struct.pack_into("<I", plan, 4 * rng.randrange(5, 75), rng.choice(NUMBERS))
            struct.pack_into("<I", plan, 16, zlib.crc32(plan[20:]))
            try:
                session.load_plan(bytes(plan))
                size = struct.unpack_from("<I", plan, 80)[0]
                list(session.train_stream([(bytes(size), 0, 0.1)] * 2, 0.0))
            except LinkError as e:
                assert e.exit_code == 6, e
            except Exception as e:
                assert type(e).__name__ == "FitError", e
        assert session.hello().board == "host"
