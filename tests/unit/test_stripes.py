"""Stripes: layers that run a few rows at a time give the same bytes as layers that run whole, and need less memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.graphs import GraphBuilder
from mcugrad.autodiff import differentiate, parse_scheme
from mcugrad.graph import Activation, Graph
from mcugrad.graph.normalize import normalize
from mcugrad.lower import Options, lower
from mcugrad.lower.program import Program
from mcugrad.memory import place
from mcugrad.memory.liveness import liveness
from mcugrad.memory.planner import step_bytes
from mcugrad.plan import Region
from mcugrad.plan.assemble import assemble
from mcugrad.ref import Machine
from mcugrad.schedule import run_in_stripes
from mcugrad.schedule.rows import Span, Window
from mcugrad.schedule.search import WIDE, _Around
from mcugrad.schedule.stripes import Stripes, group, heights_of, in_stripes

RELU = Activation.RELU


def _layer(b: GraphBuilder, x: int, kind: str, size: int, stride: int) -> int:
    """One more layer on a map; every kind that runs in stripes."""
    same = (size // 2,) * 4
    match kind:
        case "conv":
            return b.conv(x, 8, kernel=(size, size), stride=(stride, 1), pad=same, activation=RELU)
        case "dilated":
            return b.conv(x, 8, kernel=(size, 1), dilation=(2, 1), pad=(size - 1, 0, size - 1, 0))
        case "valid":
            return b.conv(x, 8, kernel=(2, 1), stride=(stride, 1), pad=(0, 0, 0, 0), activation=RELU)
        case "dwconv":
            return b.dwconv(x, 1, kernel=(size, size), stride=(stride, stride), pad=same, activation=RELU)
        case "block":
            return b.add(x, b.point(b.dwconv(b.point(x, 16, activation=RELU), 1, kernel=(size, size), pad=same, activation=RELU), 8))
        case "pool":
            return b.pool(x, (2, 2), (stride, 1), (0, 1, 0, 1))
        case "maxpool":
            return b.maxpool(x, (3, 1), (stride, 1), (1, 0, 1, 0))
        case _:
            return b.mul(x, b.point(x, 8, activation=RELU))


KINDS = ["conv", "dilated", "valid", "dwconv", "block", "pool", "maxpool", "mul"]
LAYER = st.tuples(st.sampled_from(KINDS), st.sampled_from([1, 3, 5]), st.sampled_from([1, 2]))


def net(layers: list[tuple[str, int, int]], height: int, width: int, seed: int) -> Graph:
    b = GraphBuilder((1, height, width, 3), seed=seed)
    x = b.conv(b.input, 8, kernel=(3, 3), pad=(1, 1, 1, 1), activation=RELU)
    for layer in layers:
        x = _layer(b, x, *layer)
    return b.finish(b.linear(b.mean(x), 4))


def lowered(graph: Graph, scheme: str, ws: int = 2) -> Program:
    graph = normalize(graph)
    return lower(differentiate(graph, parse_scheme(scheme, graph)), Options(ws=ws))


def outcome(program: Program, seed: int) -> tuple[bytes, list[float]]:
    """STATE and losses after three steps on random samples, and the output of a fourth."""
    machine = Machine(assemble(program, place(program)))
    losses = []
    rng = np.random.default_rng(seed)
    for k in range(3):
        x = rng.integers(-128, 128, program.sample.nbytes).astype(np.int8)
        losses.append(machine.train(x, k, 0.05, 0.0).loss)
    return machine.state + machine.predict(x).tobytes(), losses


def striped(program: Program, stripes: Stripes) -> Program | None:
    forward = program.segments[0]
    g = group(forward, stripes.first, stripes.last, heights_of(forward), _Around(program, stripes.first, stripes.last).outside)
    if g is None or stripes.rows >= g.height:
        return None
    steps = in_stripes(g, stripes.rows, again=stripes.again)
    return replace(program, segments=((*forward[: stripes.first], *steps, *forward[stripes.last + 1 :]), *program.segments[1:]))


@given(
    st.lists(LAYER, min_size=1, max_size=4),
    st.integers(16, 20),
    st.integers(3, 6),
    st.sampled_from(["all", "bias:2", "head,bias:2,weights:0:1/2", "weights:1:1/4"]),
    st.data(),
)
@settings(max_examples=25, deadline=None)
def test_any_group_in_stripes_of_any_height_gives_the_same_bytes(
    layers: list[tuple[str, int, int]], height: int, width: int, scheme: str, data: st.DataObject
) -> None:
    program = lowered(net(layers, height, width, len(layers)), scheme)
    last_step = len(program.segments[0]) - 1
    whole = outcome(program, 1)
    for _ in range(3):
        first = data.draw(st.integers(0, last_step - 1))
        last = data.draw(st.integers(first + 1, last_step))
        found = striped(program, Stripes(first, last, data.draw(st.integers(1, 5)), data.draw(st.booleans())))
        if found is not None:
            assert outcome(found, 1) == whole


def test_most_groups_of_a_net_of_windows_can_run_in_stripes() -> None:
    """The test above would say nothing if no group could."""
    program = lowered(net([("conv", 3, 1), ("block", 3, 1), ("dwconv", 3, 2)], 12, 4, 3), "bias:1")
    names = [step.kind.name for step in program.segments[0]]
    assert names[:7] == ["conv2d_fwd_s8"] * 3 + ["dwconv2d_fwd_s8", "conv2d_fwd_s8", "add_fwd_s8", "dwconv2d_fwd_s8"]
    pairs = [(a, b) for a in range(7) for b in range(a + 1, 7)]
    found = {(a, b) for a, b in pairs if striped(program, Stripes(a, b, 1, False))}
    assert len(found) >= 17 and (0, 6) in found
    for a, b in found:
        for again in (False, True):
            shaped = striped(program, Stripes(a, b, 2, again))
            assert shaped is not None and outcome(shaped, 5) == outcome(program, 5)


def arena_needed(program: Program) -> int:
    return max(step_bytes(liveness(program.steps, [program.sample]), len(program.steps)))


def test_stripes_lower_the_peak_and_make_no_row_twice() -> None:
    program = lowered(net([("conv", 3, 1), ("block", 3, 1), ("dwconv", 3, 2)], 32, 16, 3), "head")
    shaped = run_in_stripes(program)
    assert arena_needed(shaped) < 0.5 * arena_needed(program)
    assert place(shaped).sizes[Region.ARENA] < 0.6 * place(program).sizes[Region.ARENA]
    assert shaped.forward_macs == program.forward_macs
    assert outcome(shaped, 2) == outcome(program, 2)


def test_the_cheapest_cut_is_taken_that_reaches_the_goal() -> None:
    program = lowered(net([("conv", 3, 1), ("block", 3, 1), ("dwconv", 3, 2)], 32, 16, 3), "head")
    least = run_in_stripes(program)
    middle = (arena_needed(least) + arena_needed(program)) // 2
    some = run_in_stripes(program, middle)
    assert arena_needed(some) <= middle and len(some.steps) < len(least.steps)
    enough = run_in_stripes(program, arena_needed(program))
    assert not any("[" in step.label for step in enough.steps) and "expand_dwconv2d_fwd_s8" in [step.kind.name for step in enough.steps]


@pytest.mark.parametrize("width, fused", [(WIDE - 1, False), (WIDE, True)])
def test_only_rows_of_some_width_are_fused_for_speed(width: int, fused: bool) -> None:
    program = lowered(net([("block", 3, 1)], 8, width, 3), "head")
    enough = run_in_stripes(program, 1 << 20)
    assert ("expand_dwconv2d_fwd_s8" in [step.kind.name for step in enough.steps]) is fused


def test_rows_made_twice_are_counted() -> None:
    program = lowered(net([("conv", 5, 1)], 16, 4, 3), "head")
    twice = striped(program, Stripes(0, 1, 2, again=True))
    assert twice is not None
    rows = [step.scalars["p"] for step in twice.segments[0] if step.label.startswith("conv_0[")]
    assert sum(rows) == 4 + 6 * 6 + 4 and twice.forward_macs > program.forward_macs


@pytest.mark.parametrize(
    "window, out, rows, needed",
    [
        (Window(1, 1, 2), Span(0, 1), 8, Span(0, 2)),
        (Window(1, 1, 2), Span(3, 5), 8, Span(2, 6)),
        (Window(2, 1, 2), Span(3, 4), 8, Span(5, 8)),
        (Window(1, 1, 2), Span(7, 8), 8, Span(6, 8)),
        (Window(1, 3, 2), Span(0, 1), 8, Span(0, 0)),
    ],
)
def test_a_window_needs_these_rows(window: Window, out: Span, rows: int, needed: Span) -> None:
    assert window.needs(out, rows) == needed
