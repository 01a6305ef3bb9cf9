"""mcugrad in one sentence: model -> graph -> backward pass -> steps -> addresses -> plan; then board and reference run the same plan."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mcugrad.autodiff import Loss, TrainGraph, differentiate, only_predict, parse_scheme
from mcugrad.graph import Graph
from mcugrad.graph.edit import replace_head
from mcugrad.graph.normalize import normalize
from mcugrad.importer import read_model
from mcugrad.lower import Options, Program, lower
from mcugrad.memory import Layout, place
from mcugrad.plan.assemble import assemble


@dataclass(frozen=True, slots=True)
class Compiled:
    """Every stage's result, from the user's model to the plan's bytes. ``fresh_head``: the model's last layer was replaced."""

    model: Graph
    fresh_head: bool
    train: TrainGraph
    program: Program
    layout: Layout
    plan: bytes


def compile_model(
    path: Path, scheme: str | None, classes: int | None = None, options: Options | None = None, loss: Loss | None = None
) -> Compiled:
    """Compile a plan for a model file. ``classes`` asks for a fresh head of that many outputs; without a scheme the plan only predicts.

    Without ``loss`` the end of the model says which.
    """
    model = read_model(path)
    if classes is not None:
        return compile_graph(replace_head(model, classes), scheme, options, loss, fresh_head=True)
    return compile_graph(model, scheme, options, loss)


def compile_graph(
    model: Graph, scheme: str | None, options: Options | None = None, loss: Loss | None = None, *, fresh_head: bool = False
) -> Compiled:
    """Compile a plan for a graph."""
    graph = normalize(model)
    train = differentiate(graph, parse_scheme(scheme, graph), loss) if scheme is not None else only_predict(graph)
    program = lower(train, options)
    layout = place(program)
    return Compiled(model, fresh_head, train, program, layout, assemble(program, layout))
