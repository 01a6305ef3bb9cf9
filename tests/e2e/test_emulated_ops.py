"""Nets with nearly every kind of step train on the emulated cores, with and without FPU: all outputs and STATE are the reference's."""

from __future__ import annotations

import numpy as np
import pytest

from helpers.graphs import GRAPHS, random_samples
from mcugrad.board import open_board
from mcugrad.data import DataSet
from mcugrad.link import Session
from mcugrad.lower import Options
from mcugrad.pipeline import compile_graph
from mcugrad.plan import decode
from mcugrad.proof.compare import compare

pytestmark = pytest.mark.qemu

SAMPLES = 3
BOARDS = [
    *("qemu-mps2-an386", "qemu-mps2-an385", "qemu-mps3-an547"),
    pytest.param("qemu-mps2-an500", marks=pytest.mark.slow),
    pytest.param("qemu-mps2-an505", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("ws", [1, 2])
@pytest.mark.parametrize("board", BOARDS)
def test_every_kind_of_op(board: str, ws: int) -> None:
    rng = np.random.default_rng(1)
    kinds: set[str] = set()
    with open_board(board) as (_, line):
        session = Session(line)
        session.hello()
        for name in sorted(GRAPHS):
            compiled = compile_graph(GRAPHS[name](1), "all", Options(ws=ws))
            kinds |= {step.kind.name for step in compiled.program.steps}
            x = np.stack(random_samples(compiled.model, SAMPLES))
            data = DataSet(x, rng.integers(0, compiled.train.classes, SAMPLES))
            session.load_plan(compiled.plan)
            found = compare(session, compiled, decode(compiled.plan).init, data, range(SAMPLES), 0.05, 0.0)
            assert found.difference is None, (name, found.difference)
    assert len(kinds) >= 34, kinds
