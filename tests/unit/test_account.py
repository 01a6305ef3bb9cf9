"""What the report says of the arena is what the plan does: the peak, what is kept for backward, stripes."""

from __future__ import annotations

import re

import pytest

from helpers.graphs import GRAPHS
from helpers.shared import shared
from mcugrad.memory.account import SEGMENTS, fused_of, peak_of, recomputed_of, saved_of, segment_of, stripes_of
from mcugrad.memory.planner import step_bytes
from mcugrad.paths import root
from mcugrad.pipeline import compile_graph, compile_model
from mcugrad.schedule import work_done_twice
from mcugrad.schedule.recompute import made_again

ALONG = ("mask_s8", "copy_s8")
WATCH = root() / "examples" / "watch" / "watch_base.tflite"


@pytest.mark.parametrize("name", GRAPHS)
def test_the_peak_is_the_step_that_needs_most(name: str) -> None:
    compiled = compile_graph(GRAPHS[name](1), "all")
    program, layout = compiled.program, compiled.layout
    peak = peak_of(program, layout)
    needed = step_bytes(layout.live, len(program.steps))
    assert needed[peak.step] == max(needed)
    assert peak.name == program.steps[peak.step].name and peak.segment == SEGMENTS[segment_of(program, peak.step)]
    assert sum(h.bytes for h in peak.held) >= needed[peak.step]
    assert [h.bytes for h in peak.held] == sorted((h.bytes for h in peak.held), reverse=True)


def test_segments() -> None:
    program = compile_graph(GRAPHS["chain"](1), "all").program
    counts = [0] * len(SEGMENTS)
    for step in range(len(program.steps)):
        counts[segment_of(program, step)] += 1
    assert counts == [len(s) for s in program.segments]


def test_biases_alone_need_masks_and_no_activations() -> None:
    """Counted by hand: bias gradients read no activation, so all that is kept are clamp masks, the logits and the output."""
    compiled = compile_model(WATCH, "bias:4")
    saved = saved_of(compiled.program, compiled.layout)
    masks = [v for s in compiled.program.segments[0] if s.kind.name == "mask_s8" and (v := s.refs["bits"]) is not None]
    assert masks and saved.masks == sum(v.nbytes for v in masks)
    assert saved.slices == 0
    quarter = compile_model(WATCH, "bias:4,weights:conv_4:1/4")
    (kept,) = (s.refs["y"] for s in quarter.program.segments[0] if s.kind.name == "copy_s8")
    assert kept is not None and saved_of(quarter.program, quarter.layout).slices == kept.nbytes
    trained = compile_model(WATCH, "bias:4,weights:conv_4")
    whole = saved_of(trained.program, trained.layout)
    assert whole.whole > saved.whole and whole.slices == 0


MCUNET = "models/tiny_training/mcunet-5fps_int8.tflite"


def test_stripes_fused_steps_and_recomputation_are_told_with_their_price() -> None:
    compiled = compile_model(shared(MCUNET), "bias:6", 10)
    whole, program = compiled.lowered, compiled.program
    stripes = stripes_of(whole, program)
    assert stripes
    again = sum(s.again_macs for s in stripes)
    assert again == program.forward_macs - whole.forward_macs == work_done_twice(program, whole)
    parts = set(program.segments[0]) - set(whole.segments[0])
    named = {name for s in (*stripes, *fused_of(program)) for name in s.layers}
    for s in stripes:
        assert s.kept_bytes < s.whole_bytes and s.stripes >= 2 and s.rows >= 1
        last = re.compile(rf"(.* \+ )?{s.layers[-1]}\[.*")
        assert sum(last.fullmatch(step.label) is not None and step.kind.name not in ALONG for step in parts) == s.stripes
    for f in fused_of(program):
        assert f.scratch_bytes < f.whole_bytes and len(f.layers) == 2
    replaced = {step.label for step in set(whole.segments[0]) - set(program.segments[0]) if step.kind.name not in ALONG}
    assert replaced == named
    assert recomputed_of(program) == stripes_of(whole, whole) == fused_of(whole) == ()


def test_what_is_made_again_is_named() -> None:
    program = compile_graph(GRAPHS["chain"](1), "all").program
    made = next(p for v in program.tensors.values() if (p := made_again(program, v)) is not None)
    again = [s for s in made.segments[3] if s not in program.segments[3] and "fwd" in s.kind.name]
    assert again and set(recomputed_of(made)) == {s.label.removesuffix(" again") for s in again}
