"""An expansion and its depthwise as one step: the same bytes, the tensor between them gone, and only where nobody else reads it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from helpers.graphs import GraphBuilder, random_samples
from mcugrad.autodiff import differentiate, only_predict, parse_scheme
from mcugrad.graph import Activation, Graph
from mcugrad.graph.normalize import normalize
from mcugrad.lower import Options, lower
from mcugrad.lower.program import Program
from mcugrad.memory import place
from mcugrad.native import NativeMachine
from mcugrad.plan import Region
from mcugrad.plan.assemble import assemble
from mcugrad.ref import Machine
from mcugrad.schedule.fuse import fusable, fuse

RELU = Activation.RELU
KIND = "expand_dwconv2d_fwd_s8"


def block(b: GraphBuilder, x: int, size: int, stride: int, middle: int) -> int:
    """An inverted bottleneck: conv layers k, k + 2, depthwise layer k + 1."""
    e = b.point(x, middle, activation=RELU)
    return b.point(b.dwconv(e, 1, kernel=(size, size), stride=(stride, stride), activation=Activation.RELU6), 8)


def net() -> Graph:
    """Layers: 0 first, 1 2 3 and 4 5 6 the blocks, 7 the head."""
    b = GraphBuilder((1, 9, 7, 3), seed=4)
    x = b.conv(b.input, 8, kernel=(3, 3), activation=RELU)
    x = b.add(x, block(b, x, 3, 1, 18))
    return b.finish(b.linear(b.mean(block(b, x, 5, 2, 20)), 4))


def lowered(graph: Graph, scheme: str | None, ws: int = 2) -> Program:
    graph = normalize(graph)
    train = differentiate(graph, parse_scheme(scheme, graph), None) if scheme else only_predict(graph)
    return lower(train, Options(ws=ws, seed=3))


def plan(program: Program) -> bytes:
    return assemble(program, place(program))


def kinds(program: Program) -> list[str]:
    return [step.kind.name for step in program.segments[0]]


def test_both_blocks_of_a_frozen_net_are_fused_and_predict_alike() -> None:
    whole = lowered(net(), None)
    fused = fuse(whole)
    assert len(fusable(whole)) == 2 and kinds(fused).count(KIND) == 2
    assert len(fused.segments[0]) == len(whole.segments[0]) - 2
    assert sum(fused.step_macs) == sum(whole.step_macs)
    assert {f.between for f in fusable(whole)}.isdisjoint(
        {v for step in fused.steps for v in step.refs.values()} | set(fused.tensors.values())
    )
    assert place(fused).sizes[Region.ARENA] < place(whole).sizes[Region.ARENA]
    machines = Machine(plan(whole)), Machine(plan(fused)), NativeMachine(plan(fused))
    for x in random_samples(net(), 4, 7):
        a, b, c = (m.predict(x) for m in machines)
        assert np.array_equal(a, b) and np.array_equal(b, c)


@pytest.mark.parametrize(
    ("scheme", "found"),
    [
        ("bias:1", 2),
        ("bias:3", 2),  # the depthwise bias of the last block; its error stops at its output
        ("bias:4", 1),  # the errors pass the depthwise layer: its input masks them
        ("bias:1,weights:6", 2),
        ("bias:1,weights:4", 1),
        ("bias:8", 0),
    ],
)
def test_only_what_backward_does_not_need_is_fused_and_trains_alike(scheme: str, found: int) -> None:
    whole = lowered(net(), scheme)
    fused = fuse(whole)
    assert kinds(fused).count(KIND) == len(fusable(whole)) == found
    a, b = Machine(plan(whole)), NativeMachine(plan(fused))
    for step, x in enumerate(random_samples(net(), 5, 1)):
        assert a.train(x, step % 4, 0.05, skip=0.0) == b.train(x, step % 4, 0.05, skip=0.0)
        assert a.state == b.state
    assert a.state != a.plan.init


def test_a_trained_bias_goes_into_the_fused_step() -> None:
    whole = lowered(net(), "bias:3")
    (step,) = [s for s in fuse(whole).segments[0] if s.scalars.get("bdf")]
    assert step.kind.name == KIND and step.scalars["bef"] == 0


def _second_reader(b: GraphBuilder, e: int) -> int:
    return b.add(b.dwconv(e, 1, kernel=(3, 3), activation=RELU), e)


def _two_depthwise(b: GraphBuilder, e: int) -> int:
    return b.add(b.dwconv(e, 1, kernel=(3, 3), activation=RELU), b.dwconv(e, 1, kernel=(3, 3), activation=RELU))


def _multiplier(b: GraphBuilder, e: int) -> int:
    return b.dwconv(e, 2, kernel=(3, 3), activation=RELU)


@pytest.mark.parametrize("behind", [_second_reader, _two_depthwise, _multiplier])
def test_what_stands_behind_must_be_one_plain_depthwise(behind: Callable[[GraphBuilder, int], int]) -> None:
    b = GraphBuilder((1, 6, 5, 8))
    graph = b.finish(b.mean(behind(b, b.point(b.input, 8, activation=RELU))))
    assert fusable(lowered(graph, None)) == []


@pytest.mark.parametrize("kernel", [((3, 3), (1, 1), 1), ((1, 1), (2, 2), 1), ((1, 1), (1, 1), 2)])
def test_what_stands_before_must_be_one_plain_expansion(kernel: tuple[tuple[int, int], tuple[int, int], int]) -> None:
    size, stride, groups = kernel
    b = GraphBuilder((1, 6, 5, 8))
    e = b.conv(b.input, 8, kernel=size, stride=stride, groups=groups, activation=RELU)
    graph = b.finish(b.mean(b.dwconv(e, 1, kernel=(3, 3), activation=RELU)))
    assert fusable(lowered(graph, None)) == []


def test_an_output_of_the_model_is_kept() -> None:
    b = GraphBuilder((1, 6, 5, 8))
    e = b.point(b.input, 8, activation=RELU)
    graph = b.finish(b.mean(b.dwconv(e, 1, kernel=(3, 3), activation=RELU)), e)
    assert fusable(lowered(graph, None)) == []


def test_one_of_two_can_be_chosen() -> None:
    whole = lowered(net(), None)
    first, second = fusable(whole)
    fused = fuse(whole, [second])
    assert kinds(fused).count(KIND) == 1 and first.between in set(fused.tensors.values())
    assert second.scratch_bytes == 2 * 4 * 5 * (2 * 2 + 5) and second.between.nbytes == 9 * 7 * 20
