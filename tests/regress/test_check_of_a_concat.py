"""The check after training found a difference where there was none: the first copy of a concat leaves the rest of its output as it was.

A board that has trained and a fresh reference have other bytes there, so a right board was called wrong.
"""

from __future__ import annotations

import numpy as np
import pytest

from helpers.graphs import GRAPHS, random_samples
from mcugrad.board import open_board
from mcugrad.data import DataSet
from mcugrad.link import Session
from mcugrad.pipeline import compile_graph
from mcugrad.proof.compare import compare, whole_outputs


@pytest.mark.parametrize("name", ["mixed", "shuffle"])
def test_a_board_that_has_trained_a_net_with_a_concat_passes(name: str) -> None:
    graph = GRAPHS[name](6)
    compiled = compile_graph(graph, "all")
    x = np.stack(random_samples(graph, 12))
    data = DataSet(x, np.arange(12) % 3)
    with open_board("host") as (_, transport):
        session = Session(transport)
        session.hello()
        session.load_plan(compiled.plan)
        for k in range(6):
            session.sample(x[k])
            session.train(k % 3, 0.02, 0.0)
        found = compare(session, compiled, session.read_state(), data, range(6, 12), 0.02, 0.0)
        session.bye()
    assert found.difference is None and found.samples == 6


def test_only_the_first_copies_of_a_concat_are_left_out() -> None:
    compiled = compile_graph(GRAPHS["mixed"](6), "all")
    steps = compiled.program.steps
    everything = range(len(steps))
    left_out = [steps[k].name for k in set(everything) - set(whole_outputs(compiled, everything))]
    assert left_out == ["copy_s8 concat_0"]
    assert sum(step.name == "copy_s8 concat_0" for step in steps) == 4
