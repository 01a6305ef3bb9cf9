"""What the arena is used for: what holds at the peak, what forward keeps for backward, which layers run in stripes."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mcugrad.lower.program import Draft, Program, Value, macs
from mcugrad.memory.liveness import Piece
from mcugrad.memory.planner import Layout
from mcugrad.plan import Region
from mcugrad.schedule.fuse import KIND

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


@dataclass(frozen=True, slots=True)
class Fused:
    """Two layers in one step. ``scratch_bytes``: what it works in, in place of a tensor of ``whole_bytes``."""

    layers: tuple[str, ...]
    scratch_bytes: int
    whole_bytes: int


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


# ---- what the schedule has changed ------------------------------------------------------------------------------------

_PART = re.compile(r"(.*)\[(\d+):(\d+)\]")
"""Label of a step that makes some rows of a layer: first, and the one behind the last."""

_MOVE = re.compile(r".* keeps \d+ rows")
"""Label of a copy of rows that two stripes need."""

_JOIN = " + "
_AGAIN = " again"

_Key = tuple[str, str]
"""Kind and label of a whole step."""


def stripes_of(whole: Program, program: Program) -> tuple[Striped, ...]:
    """What runs in stripes in ``program``. ``whole``: the same program before it was scheduled."""
    originals = {step.label: step for step in whole.segments[0] if step.kind.name not in _ALONG}
    alone = {(step.kind.name, step.label): step for step in whole.segments[0]}
    found: list[Striped] = []
    for stripes, run in itertools.groupby(program.segments[0], _in_stripes):
        found += [_striped(group, originals, alone) for group in _groups(list(run))] if stripes else []
    return tuple(found)


_ALONG = ("mask_s8", "copy_s8")
"""Kinds that go along with the layer whose output they read."""


def _in_stripes(step: Draft) -> bool:
    return bool(_PART.fullmatch(step.label) or _MOVE.fullmatch(step.label))


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
        if k > end and (part or not groups):
            groups.append([])
        groups[-1].append(step)
        end = max(end, last[part[0]]) if part else end
    return groups


def _striped(group: Sequence[Draft], originals: Mapping[str, Draft], alone: Mapping[_Key, Draft]) -> Striped:
    parts = [part for step in group if (part := _part(step))]
    keys = list(dict.fromkeys(key for key, _ in parts))
    layers = [key for key in keys if key[0] not in _ALONG]
    paced = [rows for key, rows in parts if key == (layers or keys)[-1]]
    names = [name for _, label in layers for name in label.split(_JOIN)]
    before = [originals[name] for name in names] + [alone[key] for key in keys if key[0] in _ALONG]
    written = {v for step in before for v in _arena(step)}
    now = {v for step in group for v in _arena(step)}
    return Striped(
        tuple(names),
        len(paced),
        max(rows.stop - rows.start for rows in paced),
        sum(v.nbytes for v in now - written),
        sum(v.nbytes for v in written - now),
        sum(map(macs, group)) - sum(map(macs, before)),
    )


def _arena(step: Draft) -> set[Value]:
    """The values in ARENA that a step names, views as what they are views of."""
    return {v.root for v in step.refs.values() if v is not None and v.region is Region.ARENA}


def fused_of(program: Program) -> tuple[Fused, ...]:
    """Pairs of layers that are one step, without the tensor between them."""
    found = []
    for step in program.segments[0]:
        if step.kind.name == KIND and not _in_stripes(step):
            s, scratch = step.scalars, step.refs["scratch"]
            assert scratch is not None
            found.append(Fused(tuple(step.label.split(_JOIN)), scratch.nbytes, int(s["h"] * s["w"] * s["o"])))
    return tuple(found)


def recomputed_of(program: Program) -> tuple[str, ...]:
    """Layers whose output the backward pass makes again."""
    return tuple(dict.fromkeys(s.label.removesuffix(_AGAIN) for s in program.segments[3] if s.label.endswith(_AGAIN)))
