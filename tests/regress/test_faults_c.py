"""Memory faults that users of other systems met.

The number is that of the project's list of faults, section C; test_faults_index.py says where each entry is tested.
"""

from __future__ import annotations

import ctypes as c
import re
import subprocess

import numpy as np
import numpy.typing as npt
import pytest

from e2e.conftest import MODEL, SCHEME
from helpers.cli import mcugrad
from helpers.graphs import GRAPHS
from helpers.motions import CLASSES
from helpers.tiny_plan import samples, tiny_plan
from kernels.test_runtime import ERR
from mcugrad.board import find_board, open_board
from mcugrad.link import Session
from mcugrad.lower import Options
from mcugrad.native import _Context, aligned, library
from mcugrad.pipeline import compile_graph, compile_model
from mcugrad.plan.c_array import c_array, c_constants
from mcugrad.plan.codec import decode

UNIT = 16
CANARY = 0xC5
STEPS = 40


class Application:
    """The C runtime as an application uses it, in as many bytes as the macro says, less ``missing``, between canaries."""

    def __init__(self, plan: bytes, missing: int = 0) -> None:
        self.block = aligned(len(plan))
        self.block[:] = np.frombuffer(plan, np.uint8)
        size = c_constants(decode(plan).header)["MCUGRAD_MEMORY_BYTES"] - missing
        self.around = aligned(size + 2 * UNIT)
        self.around[:] = CANARY
        self.memory = self.around[UNIT : UNIT + size]
        self.ctx = _Context()
        self.code = library().mg_init(c.byref(self.ctx), self.block.ctypes.data, len(plan), self.memory.ctypes.data, size)

    def train(self, x: npt.NDArray[np.int8], label: int) -> None:
        library().mg_sample.restype = c.c_void_p
        c.memmove(library().mg_sample(c.byref(self.ctx)), x.tobytes(), x.size)
        assert library().mg_train(c.byref(self.ctx), label, c.c_float(0.02), c.c_float(0.0), None) == 0

    @property
    def canaries(self) -> bool:
        """Whether nothing around the memory has been written."""
        return bool((self.around[:UNIT] == CANARY).all() and (self.around[UNIT + self.memory.size :] == CANARY).all())


@pytest.mark.parametrize("ws", [2, 1])
@pytest.mark.parametrize("name", GRAPHS)
def test_c54_exactly_the_planned_bytes_are_enough(name: str, ws: int) -> None:
    plan = compile_graph(GRAPHS[name](1), "all", Options(ws=ws)).plan
    head = decode(plan).header
    app, rng = Application(plan), np.random.default_rng(3)
    assert app.code == 0
    for k in range(STEPS):
        app.train(rng.integers(-128, 128, head.sample_bytes).astype(np.int8), k % head.classes)
    assert app.canaries


@pytest.mark.parametrize("missing", [1, UNIT])
def test_c54_less_is_an_error_with_what_is_needed_and_what_is_there(missing: int) -> None:
    plan = compile_graph(GRAPHS["chain"](1), "all").plan
    app = Application(plan, missing)
    assert (app.code, app.ctx.fault.value, app.ctx.fault.limit) == (ERR["NOMEM"], app.memory.size + missing, app.memory.size)
    assert (app.around == CANARY).all(), "memory that is refused stays as it is"


def test_c55_plan_says_the_bytes_the_macro_and_the_step_that_needs_most() -> None:
    compiled = compile_model(MODEL, SCHEME, CLASSES)
    said = mcugrad("plan", MODEL, "--board", "host", "--classes", CLASSES, "--train", SCHEME).out
    need = c_constants(decode(compiled.plan).header)["MCUGRAD_MEMORY_BYTES"]
    assert f"MCUGRAD_MEMORY_BYTES {need}" in said and f"#define MCUGRAD_MEMORY_BYTES {need}\n" in c_array(compiled.plan)
    peak = compiled.layout.peak_step
    assert f"peak of the arena at step {peak} of " in said and compiled.program.steps[peak].name in said


@pytest.mark.parametrize("off", range(1, UNIT))
def test_c59_memory_and_plan_off_their_alignment_are_refused_before_anything_is_written(off: int) -> None:
    plan = compile_graph(GRAPHS["chain"](1), "head").plan
    good = Application(plan)
    room = aligned(good.memory.size + 2 * UNIT)
    room[:] = CANARY
    ctx, lib = _Context(), library()
    code = lib.mg_init(c.byref(ctx), good.block.ctypes.data, len(plan), room[off:].ctypes.data, good.memory.size)
    assert (code, ctx.fault.value % UNIT, ctx.fault.limit) == (ERR["ALIGN"], off, UNIT) and (room == CANARY).all()
    odd = aligned(len(plan) + UNIT)[off : off + len(plan)]
    odd[:] = np.frombuffer(plan, np.uint8)
    assert lib.mg_init(c.byref(ctx), odd.ctypes.data, len(plan), good.memory.ctypes.data, good.memory.size) == ERR["ALIGN"]
    assert lib.mg_memory_bytes(odd.ctypes.data, len(plan)) == 0


@pytest.mark.parametrize("name", ["double_residual", "windows"])
def test_c58_a_thousand_steps_write_nothing_around_their_memory(name: str) -> None:
    plan = compile_graph(GRAPHS[name](1), "all").plan
    head = decode(plan).header
    app, rng = Application(plan), np.random.default_rng(4)
    block = app.block.copy()
    for k in range(1000):
        app.train(rng.integers(-128, 128, head.sample_bytes).astype(np.int8), k % head.classes)
    assert app.canaries and np.array_equal(app.block, block)


@pytest.mark.qemu
@pytest.mark.parametrize("count", [1_000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_c62_many_samples_use_the_memory_of_the_first(count: int) -> None:
    with open_board("qemu-mps2-an386") as (_, line):
        session = Session(line)
        session.hello()
        session.load_plan(tiny_plan())
        list(session.train_stream(samples(50), 0.0))
        before = session.stats()
        assert sum(1 for _ in session.train_stream(samples(count), 0.0)) == count
        assert session.stats() == before and before.arena_touched_bytes > 0 and before.rx_overruns == 0
        session.bye()


@pytest.mark.qemu
def test_c64_c65_nothing_in_the_firmware_can_allocate() -> None:
    """There is no allocation that could fail, in a step or anywhere else: no allocator is linked."""
    elf = find_board("qemu-mps2-an386").build().elf
    listing = subprocess.run(["arm-none-eabi-nm", str(elf)], capture_output=True, text=True, check=True).stdout
    names = {line.split()[-1] for line in listing.splitlines()}
    assert {"mg_init", "mg_train"} <= names
    assert not [name for name in names if re.search(r"alloc|sbrk|^_?free(_r)?$", name)]
