"""plan.h says where the regions will be, and the C compiler checks it."""

from __future__ import annotations

import re
import subprocess

import pytest

from helpers.tiny_plan import tiny_plan
from mcugrad.native import aligned, library
from mcugrad.plan.c_array import c_array, c_constants
from mcugrad.plan.codec import Region, decode, offset_of, region_of

PLAN = tiny_plan()
STRICT = ("cc", "-std=c11", "-Wall", "-Wextra", "-Wconversion", "-Werror", "-Wno-unused-const-variable", "-fsyntax-only", "-x", "c", "-")


def compiles(text: str) -> tuple[bool, str]:
    done = subprocess.run(STRICT, input=text + "int bytes = sizeof mcugrad_plan;\n", capture_output=True, text=True, check=False)
    return done.returncode == 0, done.stderr


def test_the_constants_are_those_of_the_header() -> None:
    head = decode(PLAN).header
    c = c_constants(head)
    assert c["MCUGRAD_MEMORY_BYTES"] == sum(-(-n // 16) * 16 for n in (head.state_bytes, head.io_bytes, head.arena_bytes))
    assert c["MCUGRAD_ARENA_OFFSET"] + c["MCUGRAD_ARENA_BYTES"] <= c["MCUGRAD_MEMORY_BYTES"]
    start = {Region.IO: "MCUGRAD_IO_OFFSET", Region.ARENA: "MCUGRAD_ARENA_OFFSET"}[region_of(head.sample)]
    assert c["MCUGRAD_SAMPLE_OFFSET"] == c[start] + offset_of(head.sample)
    assert re.findall(r"#define (\w+) (\d+)", c_array(PLAN)) == [(name, str(value)) for name, value in c.items()]


def test_the_bytes_are_the_plan() -> None:
    body = c_array(PLAN).partition("] = {")[2].partition("};")[0]
    assert bytes(int(b, 16) for b in re.findall(r"0x[0-9a-f]{2}", body)) == PLAN


def test_the_header_compiles_without_a_warning() -> None:
    good, said = compiles(c_array(PLAN))
    assert good, said


NUMBERS = ("PLAN_BYTES", "STATE_OFFSET", "STATE_BYTES", "IO_OFFSET", "IO_BYTES", "ARENA_OFFSET", "ARENA_BYTES", "SAMPLE_BYTES")


@pytest.mark.parametrize("name", NUMBERS)
def test_a_wrong_number_does_not_compile(name: str) -> None:
    text = re.sub(rf"(#define MCUGRAD_{name}) (\d+)", lambda m: f"{m[1]} {int(m[2]) + 4096 + 4}", c_array(PLAN))
    good, said = compiles(text)
    assert not good and "static assertion failed" in said


def test_the_memory_of_the_header_is_what_init_asks_for() -> None:
    """mg_memory_bytes, in C, of the same bytes."""
    block = aligned(len(PLAN))
    block[:] = bytearray(PLAN)
    assert library().mg_memory_bytes(block.ctypes.data, len(PLAN)) == c_constants(decode(PLAN).header)["MCUGRAD_MEMORY_BYTES"]
