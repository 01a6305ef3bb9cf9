"""Plans with a signature: SHA-256 and HMAC against hashlib, and firmware that takes no others."""

from __future__ import annotations

import ctypes as c
import hashlib
import hmac
import random
import subprocess
from pathlib import Path

import numpy as np
import pytest

from helpers.cli import mcugrad
from helpers.tiny_plan import samples, tiny_plan
from mcugrad.board import open_board
from mcugrad.errors import DeviceError, UsageError
from mcugrad.link import Session
from mcugrad.paths import firmware_dir
from mcugrad.plan.sign import KEY_VARIABLE, signed

PLAN = tiny_plan()


@pytest.fixture(scope="module")
def lib(tmp_path_factory: pytest.TempPathFactory) -> c.CDLL:
    out = tmp_path_factory.mktemp("signed") / "signed.so"
    fw = firmware_dir()
    sources = (fw / "link" / "sha256.c", fw / "link" / "signed.c")
    flags = ("-std=c11", "-O1", "-shared", "-fPIC", "-Wall", "-Wextra", "-Wconversion", "-Werror")
    includes = (f"-I{fw / 'include'}", f"-I{fw / 'core'}")
    subprocess.run(["cc", *flags, *includes, *map(str, sources), "-o", str(out)], check=True)
    found = c.CDLL(str(out))
    found.mg_is_signed.restype = c.c_bool
    return found


@pytest.fixture
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """A key that this process signs with."""
    file = tmp_path / "key"
    file.write_bytes(bytes(range(32)))
    monkeypatch.setenv(KEY_VARIABLE, str(file))
    return file.read_bytes()


def sha256(lib: c.CDLL, *parts: bytes) -> bytes:
    state, out = (c.c_uint64 * 16)(), c.create_string_buffer(32)
    lib.mg_sha256_begin(state)
    for part in parts:
        lib.mg_sha256_add(state, part, c.c_size_t(len(part)))
    lib.mg_sha256_end(state, out)
    return out.raw


def test_sha256_is_hashlib_s(lib: c.CDLL) -> None:
    rng = random.Random(1)
    assert sha256(lib, b"abc").hex().startswith("ba7816bf8f01cfea414140de5dae2223b00361a3")
    for n in [*range(200), 1000, 65_537]:
        data = rng.randbytes(n)
        cut = rng.randrange(n + 1)
        assert sha256(lib, data[:cut], data[cut:]) == hashlib.sha256(data).digest(), n


def test_hmac_is_python_s(lib: c.CDLL) -> None:
    rng = random.Random(2)
    out = c.create_string_buffer(32)
    for n in (0, 1, 55, 56, 63, 64, 65, 119, 120, 5000):
        secret, data = rng.randbytes(32), rng.randbytes(n)
        lib.mg_hmac_sha256(secret, data, c.c_size_t(n), out)
        assert out.raw == hmac.digest(secret, data, "sha256")


def is_signed(lib: c.CDLL, key: bytes, block: bytes) -> bool:
    """On a copy of exactly this size: an access behind it would be seen by valgrind, and by luck here."""
    return bool(lib.mg_is_signed(key, np.frombuffer(block, np.uint8).copy().ctypes.data_as(c.c_void_p), c.c_size_t(len(block))))


def test_every_wrong_bit_breaks_the_signature(lib: c.CDLL, key: bytes) -> None:
    good = signed(PLAN)
    assert len(good) == len(PLAN) + 32
    assert is_signed(lib, key, good)
    assert is_signed(lib, key, good + bytes(100)), "the rest of the slot"
    for at in range(len(good)):
        bad = bytearray(good)
        bad[at] ^= 1 << at % 8
        assert not is_signed(lib, key, bytes(bad)), at
    assert not is_signed(lib, key[:-1] + b"\0", good)


@pytest.mark.parametrize("plan_bytes", [0, 1, len(PLAN) - 1, len(PLAN) + 1, len(PLAN) + 32, 0x7FFFFFFF, 0xFFFFFFFF, 0xFFFFFFE0])
def test_a_size_that_lies(lib: c.CDLL, key: bytes, plan_bytes: int) -> None:
    good = bytearray(signed(PLAN))
    good[12:16] = plan_bytes.to_bytes(4, "little")
    assert not is_signed(lib, key, bytes(good))


@pytest.mark.parametrize("n", [0, 1, 15, 116, 147, len(PLAN), len(PLAN) + 31])
def test_a_block_that_is_cut(lib: c.CDLL, key: bytes, n: int) -> None:
    assert not is_signed(lib, key, signed(PLAN)[:n])


def test_firmware_with_a_key_takes_no_other_plan(key: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_board("host") as (_, line):
        session = Session(line)
        session.hello()
        session.load_plan(PLAN)
        list(session.train_stream(samples(3), 0.0))
        assert session.restart().plan_crc == session.loaded.plan_crc, "at the start too"
        monkeypatch.setattr("mcugrad.link.session.signed", lambda plan: plan + bytes(32))
        with pytest.raises(DeviceError, match=r"MG_LINK_ERR_KEY.*MCUGRAD_PLAN_KEY") as e:
            session.load_plan(PLAN)
        assert e.value.exit_code == 6
        with pytest.raises(DeviceError, match="MG_LINK_ERR_NO_PLAN"):
            session.predict()
        assert session.restart().plan_crc == 0


def test_firmware_without_a_key_does_not_look(key: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    block = signed(PLAN)
    monkeypatch.delenv(KEY_VARIABLE)
    with open_board("host") as (_, line):
        session = Session(line)
        session.hello()
        assert session.load_plan(block).state_bytes == 56


def test_a_key_file_that_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, str(tmp_path / "absent"))
    with pytest.raises(UsageError, match=r"MCUGRAD_PLAN_KEY.*absent.*head -c 32"):
        signed(PLAN)
    (tmp_path / "short").write_bytes(bytes(31))
    monkeypatch.setenv(KEY_VARIABLE, str(tmp_path / "short"))
    with pytest.raises(UsageError, match="has 31 bytes, a key has 32"):
        signed(PLAN)
    mcugrad("build", "--board", "host", "--out", tmp_path / "out").fails(2, "MCUGRAD_PLAN_KEY", "31 bytes")
