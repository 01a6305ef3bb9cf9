"""What the arena is used for: what holds at the peak, what forward keeps for backward, which layers run in stripes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mcugrad.lower.program import Draft, Program, Value, macs
from mcugrad.memory.liveness import Piece
from mcugrad.memory.planner import Layout
from mcugrad.plan import Region

SEGMENTS = ("forward", "eval", "loss", "backward", "commit")
"""Names of Program.segments."""


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes of a value that hold at a step."""

    value: Value
    bytes: int


@dataclass(frozen=True, slots=True)
class Peak:
    """The step that needs most. ``held``: what holds then, the largest first; an output that lies over a dying input counts as well."""

    step: int
    name: str
    segment: str
    held: tuple[Held, ...]


@dataclass(frozen=True, slots=True)
class Saved:
    """Bytes that the forward pass keeps for the backward pass: 1-bit clamp masks, the channels that are trained, whole tensors."""

    masks: int
    slices: int
    whole: int


@dataclass(frozen=True, slots=True)
class Striped:
    """Layers that run a few rows at a time. ``rows``: output rows of the last layer in a stripe.

    ``kept_bytes``: buffers of rows in place of maps of ``whole_bytes``. ``again_macs``: multiply-accumulates that are made twice.
    """

    layers: tuple[str, ...]
    stripes: int
    rows: int
    kept_bytes: int
    whole_bytes: int
    again_macs: int


class Rows(NamedTuple):
    """Rows [start, stop) of a layer's output."""

    start: int
    stop: int


def segment_of(program: Program, step: int) -> int:
    """The number of the segment that a step belongs to."""
    for k, segment in enumerate(program.segments):
        if step < len(segment):
            return k
        step -= len(segment)
    raise IndexError(step)


def behind_forward(program: Program, piece: Piece) -> bool:
    """Whether bytes that the forward segment has written hold into loss, backward or commit, so that they are kept for training."""
    forward, evaluation = len(program.segments[0]), len(program.segments[1])
    return piece.first < forward and piece.last >= forward + evaluation


def peak_of(program: Program, layout: Layout) -> Peak:
    """What holds at the step that sets the lower bound."""
    at = layout.peak_step
    held: list[Held] = []
    for value, pieces in layout.live.pieces.items():
        size = sum(p.hi - p.lo for p in pieces if p.first <= at <= p.last)
        if size:
            held.append(Held(value, size))
    held.sort(key=lambda h: -h.bytes)
    return Peak(at, program.steps[at].name, SEGMENTS[segment_of(program, at)], tuple(held))


def saved_of(program: Program, layout: Layout) -> Saved:
    """What is kept between the passes, by its form."""
    tensors = {v.root for v in program.tensors.values()} | {program.sample}
    forward = program.segments[0]
    masks = {v.root for step in forward if step.kind.name == "mask_s8" and (v := step.refs["bits"]) is not None}
    slices = {v.root for step in forward if step.kind.name == "copy_s8" and (v := step.refs["y"]) is not None} - tensors
    kept = {v: sum(p.hi - p.lo for p in pieces if behind_forward(program, p)) for v, pieces in layout.live.pieces.items()}
    in_masks = sum(kept.get(v, 0) for v in masks)
    in_slices = sum(kept.get(v, 0) for v in slices)
    return Saved(in_masks, in_slices, sum(kept.values()) - in_masks - in_slices)


# ---- stripes ----------------------------------------------------------------------------------------------------------

_PART = re.compile(r"(.*)\[(\d+):(\d+)\]")
"""Label of a step that makes some rows of a layer: first, and the one behind the last."""

_Key = tuple[str, str]
"""Kind and label of a whole step."""


def stripes_of(whole: Sequence[Draft], steps: Sequence[Draft]) -> tuple[Striped, ...]:
    """What runs in stripes in the forward segment ``steps``, by comparing it with the one in which every step is ``whole``."""
    same = set(whole)
    originals = {(s.kind.name, s.label): s for s in set(whole) - set(steps)}
    found: list[Striped] = []
    run: list[Draft] = []
    for step in (*steps, None):
        if step is not None and step not in same:
            run.append(step)
            continue
        found += [_striped(group, originals) for group in _groups(run)]
        run = []
    return tuple(found)


def _part(step: Draft) -> tuple[_Key, Rows] | None:
    """The whole step that this is a part of, and the rows it makes; None for a step that only moves rows."""
    match = _PART.fullmatch(step.label)
    return ((step.kind.name, match[1]), Rows(int(match[2]), int(match[3]))) if match else None


def _groups(run: Sequence[Draft]) -> list[list[Draft]]:
    """Cut a run of parts where nothing before goes on behind: two groups of stripes may stand side by side."""
    last = {part[0]: k for k, step in enumerate(run) if (part := _part(step))}
    groups: list[list[Draft]] = []
    end = -1
    for k, step in enumerate(run):
        part = _part(step)
        if part and k > end:
            groups.append([])
        groups[-1].append(step)
        end = max(end, last[part[0]]) if part else end
    return groups


def _striped(group: Sequence[Draft], originals: Mapping[_Key, Draft]) -> Striped:
    parts = [part for step in group if (part := _part(step))]
    layers = [key for key in dict.fromkeys(key for key, _ in parts) if key[0] not in ("mask_s8", "copy_s8")]
    paced = [rows for key, rows in parts if key == layers[-1]]
    wholes = [originals[key] for key in dict.fromkeys(key for key, _ in parts)]
    written = {v for step in wholes for v in _arena(step)}
    buffers = {v for step in group for v in _arena(step)} - written
    gone = written - {v for step in group for v in _arena(step)}
    again = sum(macs(step) for step in group) - sum(macs(step) for step in wholes)
    return Striped(
        tuple(label for _, label in layers),
        len(paced),
        max(rows.stop - rows.start for rows in paced),
        sum(v.nbytes for v in buffers),
        sum(v.nbytes for v in gone),
        again,
    )


def _arena(step: Draft) -> set[Value]:
    """The values in ARENA that a step names, views as what they are views of."""
    return {v.root for v in step.refs.values() if v is not None and v.region is Region.ARENA}
