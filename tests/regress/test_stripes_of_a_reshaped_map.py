"""A convolution that reads a map in another shape was put into stripes with the one that writes it: planning ended in an assertion."""

from __future__ import annotations

import numpy as np
import pytest

from helpers.graphs import GraphBuilder, random_samples, run_int8
from mcugrad.graph import Activation
from mcugrad.pipeline import compile_graph
from mcugrad.ref import Machine


@pytest.mark.parametrize("seed", range(3))
def test_a_reshaped_map_is_not_cut_into_rows(seed: int) -> None:
    b = GraphBuilder((1, 5, 4, 3), seed)
    y = b.reshape(b.conv(b.input, 4, activation=Activation.RELU), (1, 4, 4, 5))
    y = b.conv(b.conv(y, 6, activation=Activation.RELU), 6, activation=Activation.RELU)
    graph = b.finish(b.linear(b.mean(y), 4))
    machine = Machine(compile_graph(graph, "head").plan)
    for sample in random_samples(graph, 3, seed):
        np.testing.assert_array_equal(machine.predict(sample), run_int8(graph, sample)[graph.output].ravel())
