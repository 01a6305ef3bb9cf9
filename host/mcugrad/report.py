"""Figures of a plan on a board: memory, flash, work; and whether it fits."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from mcugrad.board import Board, Firmware, Kind
from mcugrad.errors import FitError, UnavailableError, UsageError
from mcugrad.memory.account import Fused, Saved, Striped, fused_of, peak_of, recomputed_of, saved_of, stripes_of
from mcugrad.pipeline import Compiled
from mcugrad.plan import Region, decode
from mcugrad.plan.c_array import c_constants
from mcugrad.schedule import work_done_twice


@dataclass(frozen=True, slots=True)
class Ram:
    """Bytes. ``runtime``: the trainer's own variables, receive ring and frame buffers included; ``stack`` is what the board reserves."""

    arena: int
    state: int
    io: int
    stack: int
    runtime: int
    total: int


@dataclass(frozen=True, slots=True)
class Flash:
    """Bytes. ``plan`` is header and steps with the initial STATE, ``const`` frozen weights and constants, ``firmware`` the trainer."""

    plan: int
    const: int
    firmware: int
    total: int


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes of a value that hold at the peak."""

    name: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Peak:
    """The step that needs most of the arena. ``held``: what holds then, the largest first."""

    step: int
    name: str
    segment: str
    held: tuple[Held, ...]


@dataclass(frozen=True, slots=True)
class PlanReport:
    """What `mcugrad plan` shows. Addresses and sizes in bytes.

    ``sram``: what --sram gives; ``ram_limit``: that, or what the board has. ``arena_ratio``: arena / lower bound. ``peak_step``: the name
    of ``peak``.
    ``macs``: of a step; ``macs_again``: how many of them are made twice to save memory. ``constants``: the macros of plan.h.
    ``timing``: emulated where figures of time of this board are; none, for a plan has none of its own.
    """

    board: str
    timing: str
    scheme: str
    classes: int
    ram: Ram
    flash: Flash
    sram: int | None
    ram_limit: int
    flash_limit: int
    arena_lower_bound: int
    arena_ratio: float
    peak_step: str
    peak: Peak
    saved: Saved
    stripes: tuple[Striped, ...]
    fused: tuple[Fused, ...]
    recomputed: tuple[str, ...]
    macs: dict[str, int]
    macs_again: int
    steps: int
    trained_weights: int
    trained_biases: int
    constants: dict[str, int]
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def report(compiled: Compiled, board: Board, sram: int | None = None) -> PlanReport:
    """Measure a plan for a board, or for ``sram`` bytes of its RAM.

    Builds the board's trainer for its size; without a compiler its share counts as 0, with a note. Raises UsageError where the board has
    less than ``sram``.
    """
    firmware, notes = _firmware(board)
    sizes = compiled.layout.sizes
    const, whole = sizes[Region.CONST], len(compiled.plan)
    program = compiled.program
    ram = (sizes[Region.ARENA], sizes[Region.STATE], sizes[Region.IO], board.stack_bytes, firmware.static_ram_bytes)
    flash = (whole - const, const, firmware.flash_bytes)
    peak = peak_of(program, compiled.layout)
    return PlanReport(
        board=board.name,
        timing="emulated" if board.emulated else "none",
        scheme=compiled.train.scheme.describe(compiled.train.graph),
        classes=program.classes,
        ram=Ram(*ram, sum(ram)),
        flash=Flash(*flash, sum(flash)),
        sram=sram,
        ram_limit=ram_limit(board, sram),
        flash_limit=board.flash_bytes,
        arena_lower_bound=compiled.layout.lower_bound,
        arena_ratio=round(sizes[Region.ARENA] / max(compiled.layout.lower_bound, 1), 4),
        peak_step=peak.name,
        peak=Peak(peak.step, peak.name, peak.segment, tuple(Held(h.value.name, h.bytes) for h in peak.held)),
        saved=saved_of(program, compiled.layout),
        stripes=stripes_of(compiled.lowered, program),
        fused=fused_of(program),
        recomputed=recomputed_of(program),
        macs={"forward": program.forward_macs, "backward": program.backward_macs},
        macs_again=work_done_twice(program, compiled.lowered),
        steps=len(program.steps),
        trained_weights=sum(t.weights.nbytes // t.ws for t in program.trained if t.weights is not None),
        trained_biases=sum(t.bias.nbytes // 4 for t in program.trained if t.bias is not None),
        constants=dict(c_constants(decode(compiled.plan).header)),
        notes=(*program.notes, *notes),
    )


def ram_limit(board: Board, sram: int | None) -> int:
    """Bytes of RAM that may be used: of ``sram``, or all that the board has; 0 where that is not known."""
    if sram is not None and board.ram_bytes and sram > board.ram_bytes:
        raise UsageError(f"--sram {sram:,}: board {board.name} has {board.ram_bytes:,} bytes of RAM", "give at most that, or another board")
    return board.ram_bytes if sram is None else sram


def room_for_plan(r: PlanReport) -> int:
    """Bytes that ARENA, STATE and IO may have together, where a limit is known."""
    return r.ram_limit - r.ram.stack - r.ram.runtime


def _firmware(board: Board) -> tuple[Firmware, tuple[str, ...]]:
    unknown = Firmware(Path(), 0, 0)
    if board.kind is Kind.SERIAL:
        return unknown, ("stack, runtime and firmware of a board behind a serial port are not known before it is connected",)
    try:
        return board.build(), ()
    except UnavailableError as e:
        return unknown, (f"the trainer's own RAM and flash are not counted: {e}",)


def exceeds_ram(r: PlanReport) -> bool:
    """Whether the plan needs more RAM than there is."""
    return 0 < r.ram_limit < r.ram.total


def require_fit(r: PlanReport, smaller: Callable[[], str]) -> None:
    """Raise FitError with the numbers where the plan needs more RAM or flash than there is (0: not known).

    ``smaller`` looks for what fits in its place, for the hint; it is asked only where RAM is what is missing.
    """
    if exceeds_ram(r):
        limit = f"board {r.board} has {r.ram_limit:,}" if r.sram is None else f"--sram gives {r.sram:,}"
        raise FitError(
            f"plan needs {r.ram.total:,} bytes of RAM (arena {r.ram.arena:,}, state {r.ram.state:,}, io {r.ram.io:,}, "
            f"stack {r.ram.stack:,}, runtime {r.ram.runtime:,}; the arena's peak is at {r.peak_step}), {limit}",
            smaller(),
        )
    if r.flash_limit and r.flash.total > r.flash_limit:
        raise FitError(
            f"plan needs {r.flash.total:,} bytes of flash (plan {r.flash.plan:,}, const {r.flash.const:,}, firmware {r.flash.firmware:,}), "
            f"board {r.board} has {r.flash_limit:,}",
            "pick a smaller model or another board",
        )


STACK_MARGIN = 0.25


def thin_stack(board: str, peak: int, reserved: int) -> tuple[str, ...]:
    """A note where a board reserves less stack than was used and a quarter more. ``peak``: bytes, 0 where that is not measured."""
    wanted = math.ceil(peak * (1 + STACK_MARGIN))
    if wanted <= reserved:
        return ()
    return (f"{board} used {peak:,} bytes of stack and reserves {reserved:,}: raise stack_bytes in its board.toml to {wanted:,} or more",)


# ---- without firmware -------------------------------------------------------------------------------------------------

FRAMES_BYTES, VARIABLES_BYTES = 2_064, 1_200
"""RAM of a trainer beside its receive ring: two frames, together never more than the ring, and its variables."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Whether a plan fits a board, from board.toml alone. Bytes; ``flash`` counts all that the board keeps for firmware."""

    board: str
    ram: int
    ram_limit: int
    flash: int
    flash_limit: int
    fits: bool


def estimate(compiled: Compiled, board: Board, sram: int | None = None) -> Estimate:
    """Compare a plan with a board's memory, without building its firmware."""
    regions = sum(compiled.layout.sizes[region] for region in (Region.ARENA, Region.STATE, Region.IO))
    runtime = board.rx_ring_bytes + min(board.rx_ring_bytes, FRAMES_BYTES) + VARIABLES_BYTES
    ram = regions + board.stack_bytes + runtime
    flash = len(compiled.plan) + board.firmware_bytes
    limit = ram_limit(board, sram)
    return Estimate(board.name, ram, limit, flash, board.flash_bytes, ram <= limit and flash <= board.flash_bytes)
