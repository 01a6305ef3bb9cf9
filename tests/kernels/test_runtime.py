"""The runtime's borders: every reason to refuse a plan, hostile plans under sanitizers."""

from __future__ import annotations

import ctypes as c
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from helpers.tiny_plan import CLASSES, patched, tiny_plan
from mcugrad.native import _Context, aligned, library
from mcugrad.paths import firmware_dir, root
from mcugrad.plan.codec import HEADER_BYTES, Region, decode, ref
from mcugrad.plan.opsdef import kinds, ops_hash


def mg_err() -> dict[str, int]:
    """MG_ERR_… -> its value, from mcugrad.h."""
    text = (firmware_dir() / "include" / "mcugrad.h").read_text(encoding="utf-8")
    return {name: int(value) for name, value in re.findall(r"MG_(?:ERR_)?(\w+) = (-?\d+),  ", text)}


ERR = mg_err()

# ---- refusing plans ---------------------------------------------------------------------------------------------------

PLAN = tiny_plan()
HEAD = decode(PLAN).header
LAST = len(decode(PLAN).steps) - 1


def field(step: int, name: str, plan: bytes = PLAN) -> int:
    """Offset in a plan of one field of a step."""
    at = HEADER_BYTES
    for before in decode(plan).steps[:step]:
        at += before.kind.size
    kind = decode(plan).steps[step].kind
    return at + next(f.offset for f in (*kind.scalars, *kind.refs) if f.name == name)


def init(plan: bytes, plan_shift: int = 0, memory_shift: int = 0, missing: int = 0) -> tuple[int, int, int, int]:
    """code, step, value, limit of mg_init on a copy of ``plan``; shifts move the two blocks off their alignment."""
    block = aligned(len(plan) + 16)[plan_shift : plan_shift + len(plan)]
    block[:] = np.frombuffer(plan, np.uint8)
    bytes_needed = max(library().mg_memory_bytes(block.ctypes.data, len(plan)), 1 << 10) if missing == 0 else 0
    size = bytes_needed or library().mg_memory_bytes(block.ctypes.data, len(plan)) - missing
    memory = aligned(size + 16)[memory_shift:]
    ctx = _Context()
    code = library().mg_init(c.byref(ctx), block.ctypes.data, len(plan), memory.ctypes.data, size)
    assert code == ctx.fault.code
    return code, ctx.fault.step, ctx.fault.value, ctx.fault.limit


NO_STEP = 2**32 - 1


def set_bytes(plan: bytes, offset: int, value: bytes) -> bytes:
    return plan[:offset] + value + plan[offset + len(value) :]


def set_u32(offset: int, value: int) -> bytes:
    """PLAN with another u32 and the right CRC for it."""
    return patched(PLAN, offset, value)


def set_u8(offset: int, value: int) -> bytes:
    return patched(set_bytes(PLAN, offset, bytes([value])), 20, HEAD.model_hash)


def test_a_good_plan_is_accepted_and_its_hash_is_that_of_ops_def() -> None:
    assert init(PLAN) == (0, NO_STEP, 0, 0)
    library().mg_ops_hash.restype = c.c_uint32
    assert library().mg_ops_hash() == ops_hash()


def test_the_sample_may_be_in_the_arena() -> None:
    assert init(set_u32(76, ref(Region.ARENA, HEAD.arena_bytes - 4)))[0] == 0


@pytest.mark.parametrize(
    ("plan", "code", "value", "limit"),
    [
        pytest.param(PLAN[:100], "SIZE", 116, 100, id="cut in the header"),
        pytest.param(PLAN[:-16], "SIZE", len(PLAN), len(PLAN) - 16, id="cut at the end"),
        pytest.param(bytes(256), "MAGIC", 0, 0x4C50474D, id="zero bytes"),
        pytest.param(set_bytes(PLAN, 4, b"\3"), "VERSION", 3, 2, id="a later format"),
        pytest.param(set_bytes(PLAN, 6, b"\x80"), "HEADER", 128, 116, id="a longer header"),
        pytest.param(set_bytes(PLAN, 8, b"\0\0\0\0"), "OPS", 0, ops_hash(), id="another ops.def"),
        pytest.param(set_bytes(PLAN, len(PLAN) - 1, b"\x55"), "CRC", None, HEAD.plan_crc, id="a flipped byte"),
        pytest.param(set_u32(40, len(PLAN)), "SIZE", HEAD.const_offset + len(PLAN), len(PLAN), id="CONST longer than the plan"),
        pytest.param(set_u32(36, HEAD.const_offset + 4), "ALIGN", HEAD.const_offset + 4, 16, id="CONST not aligned"),
        pytest.param(set_u32(44, HEAD.const_offset), "HEADER", HEAD.const_offset, None, id="STATE over CONST"),
        pytest.param(set_u32(24, 2**30 + 4), "SIZE", 2**30 + 4, 2**30, id="an ARENA that offsets cannot reach"),
        pytest.param(set_u32(72, HEAD.steps_bytes - 4), "RECORD", 8, 4, id="steps cut in the last record"),
        pytest.param(set_u32(64, 2), "SIZE", HEAD.steps_bytes - 8, HEAD.steps_bytes, id="bytes behind the last step"),
        pytest.param(set_u32(68, 1), "RECORD", 4, 0, id="a commit step that is not there"),
        pytest.param(set_u32(76, ref(Region.STATE, 0)), "REF", 2 << 30, 3 << 30, id="the sample in STATE"),
        pytest.param(set_u32(76, ref(Region.CONST, 0)), "REF", 1 << 30, 3 << 30, id="the sample in CONST"),
        pytest.param(
            set_u32(76, ref(Region.ARENA, HEAD.arena_bytes - 3)),
            "REF",
            HEAD.arena_bytes + 1,
            HEAD.arena_bytes,
            id="a sample that leaves ARENA",
        ),
        pytest.param(set_u32(80, HEAD.io_bytes + 1), "REF", HEAD.io_bytes + 1, HEAD.io_bytes, id="a sample longer than IO"),
        pytest.param(set_u32(84, HEAD.args + 2), "ALIGN", HEAD.args + 2, 4, id="args not aligned"),
        pytest.param(set_u32(108, 7), "HEADER", 7, 0, id="a reserved word"),
    ],
)
def test_a_damaged_plan_is_refused_with_value_and_limit(plan: bytes, code: str, value: int | None, limit: int | None) -> None:
    got = init(plan)
    assert got[0] == ERR[code]
    assert value in (None, got[2])
    assert limit in (None, got[3])


@pytest.mark.parametrize(
    ("plan", "code", "step"),
    [
        pytest.param(set_u8(HEADER_BYTES, 0xEE), "CODE", 0, id="unknown code"),
        pytest.param(set_u8(HEADER_BYTES + 2, kinds()["linear_fwd_s32"].size + 4), "RECORD", 0, id="record too long"),
        pytest.param(set_u8(field(0, "zx") + 1, 1), "RECORD", 0, id="padding not zero"),
        pytest.param(set_u8(field(0, "ws"), 3), "FIELD", 0, id="a NEED that fails"),
        pytest.param(set_u32(field(0, "wf"), 4), "REF", 0, id="an unused reference that is not zero"),
        pytest.param(set_u32(field(0, "x"), ref(Region.IO, HEAD.io_bytes - 3)), "REF", 0, id="one byte outside"),
        pytest.param(set_u32(field(0, "b"), ref(Region.STATE, 2)), "ALIGN", 0, id="int32 not aligned"),
        pytest.param(set_u32(field(1, "y"), ref(Region.CONST, 0)), "READONLY", 1, id="writes into CONST"),
        pytest.param(set_u32(field(1, "rq"), ref(Region.STATE, 0)), "REF", 1, id="requant not in CONST"),
        pytest.param(set_u8(HEAD.const_offset + 7, 0x80), "VALUE", 1, id="a requant out of range"),
        pytest.param(set_u8(HEAD.const_offset + 32 + 3, 0x80), "VALUE", 2, id="a negative scale"),
    ],
)
def test_a_damaged_step_is_refused_by_its_index(plan: bytes, code: str, step: int) -> None:
    got = init(plan)
    assert (got[0], got[1]) == (ERR[code], step)


BATCH = tiny_plan(af=5)
COMMIT_AT = len(decode(BATCH).steps) - 2
"""The first of the two commit steps."""


def batch_u8(step: int, name: str, value: int) -> bytes:
    """BATCH with another scalar in one step."""
    return patched(set_bytes(BATCH, field(step, name, BATCH), bytes([value])), 20, HEAD.model_hash)


@pytest.mark.parametrize(
    ("plan", "code", "step"),
    [
        pytest.param(batch_u8(3, "af", 8), "FIELD", 3, id="more fraction bits than a byte has"),
        pytest.param(batch_u8(4, "af", 9), "FIELD", 4, id="more fraction bits than the bias has"),
        pytest.param(batch_u8(COMMIT_AT, "af", 0), "FIELD", COMMIT_AT, id="a commit of nothing"),
        pytest.param(batch_u8(COMMIT_AT, "af", 8), "FIELD", COMMIT_AT, id="a commit of more than a byte"),
        pytest.param(batch_u8(COMMIT_AT + 1, "af", 9), "FIELD", COMMIT_AT + 1, id="a commit of more than bf bits"),
        pytest.param(batch_u8(COMMIT_AT + 1, "bf", 17), "FIELD", COMMIT_AT + 1, id="more than 16 bits"),
        pytest.param(batch_u8(COMMIT_AT, "n", 255), "REF", COMMIT_AT, id="a commit of more weights than there are"),
        pytest.param(patched(BATCH, 68, 1), "SIZE", None, id="a step behind the last segment"),
        pytest.param(patched(BATCH, 68, 3), "RECORD", COMMIT_AT + 2, id="a commit step that is not there"),
    ],
)
def test_a_damaged_plan_for_micro_batches_is_refused(plan: bytes, code: str, step: int | None) -> None:
    assert init(BATCH)[0] == 0
    got = init(plan)
    assert (got[0], got[1]) == (ERR[code], NO_STEP if step is None else step)


@pytest.mark.parametrize("off", range(1, 16))
def test_unaligned_plan_and_memory_are_refused(off: int) -> None:
    assert init(PLAN, plan_shift=off)[0] == ERR["ALIGN"]
    assert init(PLAN, memory_shift=off)[0] == ERR["ALIGN"]


def test_one_byte_too_little_memory_is_refused_with_both_numbers() -> None:
    code, _, value, limit = init(PLAN, missing=1)
    assert (code, value - limit) == (ERR["NOMEM"], 1)


@pytest.mark.parametrize(
    ("label", "lr", "skip", "code"),
    [
        (CLASSES, 0.1, 0.1, "LABEL"),
        (65535, 0.1, 0.1, "LABEL"),
        (0, float("nan"), 0.1, "ARG"),
        (0, -0.1, 0.1, "ARG"),
        (0, float("inf"), 0.1, "ARG"),
        (0, 0.1, float("nan"), "ARG"),
        (0, 0.1, -1.0, "ARG"),
        (0, 0.0, 0.0, "OK"),
    ],
)
def test_train_refuses_what_the_host_should_have_refused(label: int, lr: float, skip: float, code: str) -> None:
    block, ctx = aligned(len(PLAN)), _Context()
    block[:] = np.frombuffer(PLAN, np.uint8)
    memory = aligned(library().mg_memory_bytes(block.ctypes.data, len(PLAN)))
    assert library().mg_init(c.byref(ctx), block.ctypes.data, len(PLAN), memory.ctypes.data, len(memory)) == 0
    before = memory.copy()
    assert library().mg_train(c.byref(ctx), label, lr, skip, None) == {**ERR, "OK": 0}[code]
    assert (code == "OK") == bool((memory != before).any())


# ---- the build --------------------------------------------------------------------------------------------------------


def test_ops_header_links_only_what_is_named() -> None:
    command = (sys.executable, str(firmware_dir() / "core" / "ops_header.py"), str(firmware_dir() / "ops.def"), "/dev/stdout")
    text = subprocess.run([*command, "tick", "xent_s32"], capture_output=True, text=True, check=True).stdout
    assert set(re.findall(r"MG_HAS_(\w+) 1", text)) == {"tick", "xent_s32"}
    refused = subprocess.run([*command, "no_such_step"], capture_output=True, text=True, check=False)
    assert refused.returncode != 0
    assert "no_such_step" in refused.stderr


@pytest.fixture(scope="module")
def fuzzer() -> Path:
    """fuzz_plan with AddressSanitizer and UndefinedBehaviorSanitizer."""
    folder = root() / "build" / "sanitize"
    for command in (["-S", root(), "-B", folder, "-G", "Ninja", "-DMG_SANITIZE=ON"], ["--build", folder, "--target", "fuzz_plan"]):
        done = subprocess.run(["cmake", *command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    return folder / "fuzz_plan"


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_hostile_plans_never_leave_their_regions(fuzzer: Path, seed: int) -> None:
    done = subprocess.run([fuzzer, "500", str(seed)], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    accepted = {name: int(count) for name, count in (line.split() for line in done.stdout.splitlines())}
    assert set(accepted) == {*kinds(), "plans"}
    assert min(accepted.values()) > 10, "a fuzzer whose inputs are refused tests nothing"
