"""Figures of a plan on a board: memory, flash, work; and whether it fits."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from mcugrad.board import Board, Firmware, Kind
from mcugrad.errors import FitError, UnavailableError
from mcugrad.pipeline import Compiled
from mcugrad.plan import Region


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
class PlanReport:
    """What `mcugrad plan` shows. Addresses and sizes in bytes."""

    board: str
    scheme: str
    classes: int
    ram: Ram
    flash: Flash
    ram_limit: int
    flash_limit: int
    arena_lower_bound: int
    peak_step: str
    macs: dict[str, int]
    steps: int
    trained_weights: int
    trained_biases: int
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def report(compiled: Compiled, board: Board) -> PlanReport:
    """Measure a plan for a board. Builds the board's trainer for its size; without a compiler its share counts as 0, with a note."""
    firmware, notes = _firmware(board)
    sizes = compiled.layout.sizes
    const, whole = sizes[Region.CONST], len(compiled.plan)
    program = compiled.program
    ram = (sizes[Region.ARENA], sizes[Region.STATE], sizes[Region.IO], board.stack_bytes, firmware.static_ram_bytes)
    flash = (whole - const, const, firmware.flash_bytes)
    return PlanReport(
        board=board.name,
        scheme=compiled.train.scheme.describe(compiled.train.graph),
        classes=program.classes,
        ram=Ram(*ram, sum(ram)),
        flash=Flash(*flash, sum(flash)),
        ram_limit=board.ram_bytes,
        flash_limit=board.flash_bytes,
        arena_lower_bound=compiled.layout.lower_bound,
        peak_step=program.steps[compiled.layout.peak_step].name,
        macs={"forward": program.forward_macs, "backward": program.backward_macs},
        steps=len(program.steps),
        trained_weights=sum(t.weights.nbytes // t.ws for t in program.trained if t.weights is not None),
        trained_biases=sum(t.bias.nbytes // 4 for t in program.trained if t.bias is not None),
        notes=(*program.notes, *notes),
    )


def _firmware(board: Board) -> tuple[Firmware, tuple[str, ...]]:
    unknown = Firmware(Path(), 0, 0)
    if board.kind is Kind.SERIAL:
        return unknown, ("stack, runtime and firmware of a board behind a serial port are not known before it is connected",)
    try:
        return board.build(), ()
    except UnavailableError as e:
        return unknown, (f"the trainer's own RAM and flash are not counted: {e}",)


def require_fit(r: PlanReport) -> None:
    """Raise FitError with the numbers where the plan needs more RAM or flash than the board has (0: not known)."""
    if r.ram_limit and r.ram.total > r.ram_limit:
        raise FitError(
            f"plan needs {r.ram.total:,} bytes of RAM (arena {r.ram.arena:,}, state {r.ram.state:,}, io {r.ram.io:,}, "
            f"stack {r.ram.stack:,}, runtime {r.ram.runtime:,}), board {r.board} has {r.ram_limit:,}",
            f"train less (the arena's peak is at {r.peak_step}) or pick another board",
        )
    if r.flash_limit and r.flash.total > r.flash_limit:
        raise FitError(
            f"plan needs {r.flash.total:,} bytes of flash (plan {r.flash.plan:,}, const {r.flash.const:,}, firmware {r.flash.firmware:,}), "
            f"board {r.board} has {r.flash_limit:,}",
            "pick a smaller model or another board",
        )
