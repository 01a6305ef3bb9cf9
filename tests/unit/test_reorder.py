"""The order of steps: it lowers the peak of branches, keeps every dependency, and changes no byte."""

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
from mcugrad.lower.program import Draft, Program
from mcugrad.memory import place
from mcugrad.memory.liveness import liveness
from mcugrad.memory.planner import step_bytes
from mcugrad.plan.assemble import assemble
from mcugrad.ref import Machine
from mcugrad.schedule import schedule
from mcugrad.schedule.reorder import dependencies, reorder
from mcugrad.schedule.search import cuts


def fans(branches: int = 4) -> Graph:
    """All wide maps first, then their narrow ends: an order that keeps every wide map alive."""
    b = GraphBuilder((1, 8, 8, 3), seed=2)
    wide = [b.conv(b.input, 16, kernel=(3, 3), activation=Activation.RELU) for _ in range(branches)]
    narrow = [b.point(x, 2) for x in wide]
    x = narrow[0]
    for other in narrow[1:]:
        x = b.add(x, other)
    return b.finish(b.linear(b.mean(x), 4))


def lowered(graph: Graph, scheme: str, ws: int) -> Program:
    graph = normalize(graph)
    return lower(differentiate(graph, parse_scheme(scheme, graph)), Options(ws=ws))


def peak(program: Program) -> int:
    return max(step_bytes(liveness(program.steps, [program.sample]), len(program.steps)))


def outcome(program: Program) -> bytes:
    machine = Machine(assemble(program, place(program)))
    rng = np.random.default_rng(3)
    for k in range(3):
        machine.train(rng.integers(-128, 128, program.sample.nbytes).astype(np.int8), k, 0.05, 0.0)
    return machine.state


def test_branches_run_one_after_the_other() -> None:
    program = lowered(fans(), "head", 2)
    better = reorder(program)
    assert peak(better) <= 0.6 * peak(program)
    assert outcome(better) == outcome(program)
    assert sorted(map(id, better.steps)) == sorted(map(id, program.steps))


def test_a_plan_is_compiled_in_the_better_order() -> None:
    program = lowered(fans(), "head", 2)
    assert schedule(program)[1].lower_bound < place(cuts(program).best()).lower_bound


@pytest.mark.parametrize("name", list(GRAPHS))
def test_a_chain_is_left_alone_and_nothing_gets_worse(name: str) -> None:
    program = lowered(GRAPHS[name](1), "all", 1)
    better = reorder(program)
    assert peak(better) <= peak(program)
    assert outcome(better) == outcome(program)


def shuffled(steps: tuple[Draft, ...], pick: st.DataObject) -> tuple[Draft, ...]:
    """Any order that the dependencies allow."""
    waits, left, order = dependencies(steps), set(range(len(steps))), []
    while left:
        ready = sorted(k for k in left if not waits[k] & left)
        order.append(pick.draw(st.sampled_from(ready)))
        left.remove(order[-1])
    return tuple(steps[k] for k in order)


@given(st.sampled_from(sorted(GRAPHS)), st.sampled_from([1, 2]), st.data())
@settings(max_examples=20, deadline=None)
def test_every_order_that_the_dependencies_allow_gives_the_same_bytes(name: str, ws: int, data: st.DataObject) -> None:
    program = lowered(GRAPHS[name](3), "all", ws)
    forward, evaluation, loss, backward, commit = program.segments
    other = replace(program, segments=(shuffled(forward, data), evaluation, loss, shuffled(backward, data), commit))
    assert outcome(other) == outcome(program)


def test_an_update_waits_for_the_error_that_reads_the_old_weights() -> None:
    steps = lowered(GRAPHS["chain"](1), "all", 2).segments[3]
    waits = dependencies(steps)
    for k, step in enumerate(steps):
        if "_upd_q16" in step.kind.name:
            readers = [j for j, s in enumerate(steps) if s.refs.get("wt") is step.refs["wt"] and j != k]
            assert set(readers) <= waits[k]
