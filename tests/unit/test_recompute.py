"""Recomputation: less memory, more work, the same bytes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.graphs import GRAPHS, GraphBuilder
from mcugrad.autodiff import differentiate, parse_scheme
from mcugrad.graph import Activation, Graph
from mcugrad.graph.normalize import normalize
from mcugrad.lower import Options, lower
from mcugrad.lower.program import Program, Value
from mcugrad.memory import place
from mcugrad.pipeline import compile_graph
from mcugrad.plan import Region
from mcugrad.plan.assemble import assemble
from mcugrad.ref import Machine
from mcugrad.schedule import recompute, schedule, work_done_twice
from mcugrad.schedule.recompute import made_again


def long_chain(depth: int = 10) -> Graph:
    b = GraphBuilder((1, 12, 12, 2), seed=4)
    x = b.input
    for _ in range(depth):
        x = b.conv(x, 8, kernel=(3, 3), pad=(1, 1, 1, 1), activation=Activation.RELU)
    return b.finish(b.linear(b.mean(x), 4))


def lowered(graph: Graph, scheme: str, ws: int = 2) -> Program:
    graph = normalize(graph)
    return lower(differentiate(graph, parse_scheme(scheme, graph)), Options(ws=ws))


def outcome(program: Program, samples: int = 3) -> tuple[bytes, list[float], list[bytes]]:
    """STATE, losses and every integer gradient of some training steps."""
    machine = Machine(assemble(program, place(program)))
    gradients: list[bytes] = []
    machine.observe = lambda index, kind, arrays: gradients.append(arrays["grad"].tobytes()) if "grad" in arrays else None
    rng = np.random.default_rng(3)
    losses = [machine.train(rng.integers(-128, 128, program.sample.nbytes).astype(np.int8), k, 0.05, 0.0).loss for k in range(samples)]
    return machine.state, losses, gradients


def arena(program: Program) -> int:
    return place(program).sizes[Region.ARENA]


def test_fault_66_a_chain_of_ten_layers_needs_less_and_its_gradients_are_the_same() -> None:
    program = lowered(long_chain(), "all")
    less = recompute(program, 0)
    assert arena(less) < 0.6 * arena(program)
    assert work_done_twice(less, program) > 0
    assert outcome(less) == outcome(program)
    assert len(outcome(program)[2]) == 3 * 22


@pytest.mark.parametrize("name", list(GRAPHS))
@pytest.mark.parametrize("ws", [1, 2])
def test_every_graph_recomputed_as_far_as_it_goes_gives_the_same_bytes(name: str, ws: int) -> None:
    program = lowered(GRAPHS[name](1), "all", ws)
    assert outcome(recompute(program, 0)) == outcome(program)


@given(st.data())
@settings(max_examples=20, deadline=None)
def test_any_value_that_can_be_made_again_is_the_same(data: st.DataObject) -> None:
    program = whole = lowered(GRAPHS[data.draw(st.sampled_from(sorted(GRAPHS)))](2), "all")
    for _ in range(data.draw(st.integers(1, 4))):
        candidates = sorted(_arena_values(program), key=lambda v: (v.name, v.nbytes))
        program = made_again(program, data.draw(st.sampled_from(candidates))) or program
    assert outcome(program) == outcome(whole)


def _arena_values(program: Program) -> set[Value]:
    return {v for step in program.segments[0] for v in step.refs.values() if v is not None and v.region is Region.ARENA and v.base is None}


def test_it_stops_at_the_goal() -> None:
    program = lowered(long_chain(), "all")
    least, some = recompute(program, 0), recompute(program, 8_000)
    assert arena(least) < arena(some) <= 8_016 < arena(program)
    assert 0 < work_done_twice(some, program) < work_done_twice(least, program)
    assert recompute(program, arena(program)) is program


def test_a_budget_of_ram_makes_the_planner_trade_work_for_memory() -> None:
    free = compile_graph(long_chain(), "all")
    sizes = free.layout.sizes
    fixed = sizes[Region.STATE] + sizes[Region.IO]
    exact = compile_graph(long_chain(), "all", ram=fixed + sizes[Region.ARENA])
    assert exact.plan == free.plan
    tight = compile_graph(long_chain(), "all", ram=fixed + sizes[Region.ARENA] * 3 // 4)
    assert tight.layout.sizes[Region.ARENA] <= sizes[Region.ARENA] * 3 // 4
    assert work_done_twice(tight.program, tight.lowered) > 0
    hopeless = compile_graph(long_chain(), "all", ram=fixed + 16)
    least = compile_graph(long_chain(), "all", ram=0)
    assert fixed + 16 < fixed + least.layout.sizes[Region.ARENA] <= fixed + hopeless.layout.sizes[Region.ARENA]


def test_without_need_nothing_is_computed_twice() -> None:
    whole = lowered(long_chain(), "all")
    assert work_done_twice(schedule(whole)[0], whole) == 0


def test_the_same_budget_gives_the_same_plan_again() -> None:
    """Values of one size were tried in the order of a set, which changes with their places in memory: a checkpoint found another plan."""
    ram = sum(compile_graph(long_chain(), "all").layout.sizes[region] for region in (Region.STATE, Region.IO)) + 6_500
    assert len({compile_graph(long_chain(), "all", ram=ram).plan for _ in range(4)}) == 1


def test_a_layer_that_backward_has_updated_already_is_not_run_again() -> None:
    """Its new weights would give other values."""
    program = lowered(long_chain(4), "all")
    forward, evaluation, loss, backward, commit = program.segments
    wide = next(s.refs["y"] for s in forward if s.label == "conv_1")
    assert wide is not None and made_again(program, wide) is not None
    update = next(s for s in backward if s.label == "conv_1" and s.kind.name == "conv2d_upd_q16")
    early = (update, *(s for s in backward if s is not update))
    assert made_again(replace(program, segments=(forward, evaluation, loss, early, commit)), wide) is None
