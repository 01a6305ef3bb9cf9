"""Flash, static RAM and stack of the trainer firmware stay within budgets. Growth is a decision: it is made by changing a number here.

The deepest stack is computed: frames as the compiler reports them (-fstack-usage), calls as they stand in the image. An indirect call
has the targets of INDIRECT; a new one must be entered there. `pytest tests/size -s` prints the numbers.
"""

from __future__ import annotations

import fnmatch
import re
import subprocess
from dataclasses import dataclass

import pytest

from helpers.tiny_plan import samples, tiny_plan
from mcugrad.board import Firmware, find_board, open_board
from mcugrad.link import Session

pytestmark = pytest.mark.qemu

NAME = "qemu-mps2-an386"
FLASH_BUDGET_BYTES = 60_600
STATIC_RAM_BUDGET_BYTES = 7_800
FRAME_BUDGET_BYTES = 440
STACK_BUDGET_BYTES = 1_150

LIBRARY_FRAME_BYTES = 40
"""Assumed for memcpy, memset and the compiler's helpers, whose frames are not reported; theirs are 0 to 24."""

INTERRUPT_BYTES = 104
"""What the core pushes before a handler runs, floating-point registers included."""

COMMANDS = (
    *("load_begin", "load_data", "load_end", "sample", "train", "predict", "commit", "start", "result", "read", "baud"),
    *("write_state", "reset", "trace", "stats", "bye", "save", "restore", "checkpoints", "restart"),
)
HOOKS = ("trace_step", "profile_step")
INDIRECT = {
    "mg_session_execute": COMMANDS,
    "mg_frame_send": ("to_port",),
    "mg_train": HOOKS,
    "mg_predict": HOOKS,
    "mg_commit": HOOKS,
    "run_segment": HOOKS,
    "between_steps": ("take",),
    "mg_check_step": ("counts_*",),
    "mg_save": ("erase_checkpoint", "program_checkpoint", "read_checkpoint"),
    "mg_restore": ("read_checkpoint",),
    "look": ("read_checkpoint",),
    "read_crc": ("read_checkpoint",),
    "mg_outputs_crc": ("counts_*",),
}
"""Function with a call through a pointer -> what it may call, patterns. Not all keys need be in an image: the compiler inlines."""

STARTED, BETWEEN = "mg_session_compute", "between_steps"
"""Below the step of a START the hook may also take what has arrived, of which only a SAMPLE is executed: session.c, take."""


@dataclass(frozen=True, slots=True)
class Image:
    """``frames``: bytes of stack by function. ``calls``: function -> its callees. ``indirect``: functions that call through pointers."""

    frames: dict[str, int]
    calls: dict[str, frozenset[str]]
    indirect: frozenset[str]

    def frame(self, function: str) -> int:
        base = function.split(".", maxsplit=1)[0]
        found = [self.frames[name] for name in (function, re.sub(r"\.\d+$", "", function), base) if name in self.frames]
        return found[0] if found else LIBRARY_FRAME_BYTES

    def targets(self, function: str, path: tuple[str, ...]) -> frozenset[str]:
        """What ``function`` may call through pointers, called along ``path``."""
        patterns = INDIRECT[function] if function in self.indirect else ()
        if patterns is HOOKS and STARTED in path:
            patterns = (*HOOKS, BETWEEN)
        if patterns is COMMANDS and BETWEEN in path:
            patterns = ("sample",)
        return frozenset(name for pattern in patterns for name in fnmatch.filter(self.calls, pattern))

    def deepest(self, function: str, path: tuple[str, ...] = ()) -> tuple[int, tuple[str, ...]]:
        """(bytes, calls) of the deepest stack below a function. Recursion is an error."""
        assert function not in path, f"recursion: {' -> '.join((*path, function))}"
        callees = self.calls.get(function, frozenset()) | self.targets(function, path)
        if BETWEEN in path:
            callees -= {"mg_session_init"}  # RESTART waits
        below = max((self.deepest(callee, (*path, function)) for callee in callees), default=(0, ()))
        return self.frame(function) + below[0], (function, *below[1])


@pytest.fixture(scope="module")
def firmware() -> Firmware:
    return find_board(NAME).build()


@pytest.fixture(scope="module")
def image(firmware: Firmware) -> Image:
    return Image(_frames(firmware), *_calls(firmware))


def _frames(firmware: Firmware) -> dict[str, int]:
    frames: dict[str, int] = {}
    for file in firmware.elf.parent.glob("CMakeFiles/*.dir/**/*.su"):
        if file.with_suffix(".obj").exists() and not {"mcugrad.dir", "trainer.dir"}.isdisjoint(file.parts):
            for line in file.read_text(encoding="utf-8").splitlines():
                where, size, kind = line.split("\t")
                assert kind == "static", f"the frame of {where} has no fixed size"
                name = where.rpartition(":")[2]
                frames[name] = max(frames.get(name, 0), int(size))
    return frames


def _calls(firmware: Firmware) -> tuple[dict[str, frozenset[str]], frozenset[str]]:
    listing = subprocess.run(
        ["arm-none-eabi-objdump", "-d", "--no-show-raw-insn", str(firmware.elf)], capture_output=True, text=True, check=True
    ).stdout
    calls: dict[str, frozenset[str]] = {}
    indirect: set[str] = set()
    for block in re.split(r"\n(?=[0-9a-f]+ <)", listing):
        head = re.match(r"[0-9a-f]+ <([^>]+)>:", block)
        if head is None:
            continue
        name = head[1]
        direct = re.findall(r"\t(?:bl|b|b\w{2})(?:\.[nw])?\t[0-9a-f]+ <([^>+]+)>", block)
        calls[name] = calls.get(name, frozenset()) | frozenset(direct) - {name}  # static functions of two files may share a name
        if re.search(r"\tblx\tr\d+|\tbx\tr\d+", block):
            indirect.add(name)
    functions = frozenset(calls)  # a size that the linker is given is a symbol too, and may be the address of a branch
    return {name: callees & functions for name, callees in calls.items()}, frozenset(indirect)


def test_flash_and_static_ram(firmware: Firmware) -> None:
    flash, ram = firmware.flash_bytes, firmware.static_ram_bytes
    print(f"\nflash {flash:,} of {FLASH_BUDGET_BYTES:,} bytes, static RAM {ram:,} of {STATIC_RAM_BUDGET_BYTES:,}")
    assert flash <= FLASH_BUDGET_BYTES <= find_board(NAME).firmware_bytes
    assert ram <= STATIC_RAM_BUDGET_BYTES


def test_largest_frame(image: Image) -> None:
    largest = sorted(image.frames.items(), key=lambda item: -item[1])[:5]
    print("\nlargest frames: " + ", ".join(f"{name} {size}" for name, size in largest))
    assert len(image.frames) > 60
    assert largest[0][1] <= FRAME_BUDGET_BYTES


def test_every_indirect_call_is_known(image: Image) -> None:
    ours = {name for name in image.indirect if name.split(".")[0] in {n.split(".")[0] for n in image.frames}}
    assert ours <= set(INDIRECT), "enter its targets in INDIRECT"
    missing = {pattern for name in ours for pattern in INDIRECT[name] if not fnmatch.filter(image.calls, pattern)}
    assert not missing, f"{missing} are not functions of the image: were they renamed or inlined?"


def deepest_stack(image: Image) -> tuple[int, str]:
    """(bytes, path) of the trainer, interrupted at its deepest."""
    main, path = image.deepest("reset_handler")
    handler, handler_path = max(image.deepest(name) for name in image.calls if name.endswith("_handler") and name != "reset_handler")
    return main + INTERRUPT_BYTES + handler, f"{' -> '.join(path)}, interrupted by {' -> '.join(handler_path)}"


def test_deepest_stack(image: Image) -> None:
    total, path = deepest_stack(image)
    print(f"\nstack {total:,} of {STACK_BUDGET_BYTES:,} bytes: {path}")
    assert total <= STACK_BUDGET_BYTES
    assert total * 5 // 4 <= find_board(NAME).stack_bytes


def test_measured_stack_is_below_the_computed(image: Image, firmware: Firmware) -> None:
    with open_board(NAME, firmware) as (_, line):
        session = Session(line)
        session.hello()
        session.load_plan(tiny_plan())
        session.trace_on()
        list(session.train_stream(samples(5), 0.0))
        measured = session.stats().stack_peak_bytes
    computed, _ = deepest_stack(image)
    print(f"\nstack measured with a tiny plan: {measured} of {computed} computed")
    assert computed // 3 < measured <= computed
