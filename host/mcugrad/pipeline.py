"""mcugrad in one sentence: model -> graph -> backward pass -> steps -> addresses -> plan; then board and reference run the same plan."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from mcugrad.autodiff import Loss, TrainGraph, differentiate, only_predict, parse_scheme
from mcugrad.graph import Graph
from mcugrad.graph.edit import replace_head, with_weights
from mcugrad.graph.normalize import normalize
from mcugrad.graph.permute import ChannelOrder, Channels, in_model_order, order_by_norm
from mcugrad.importer import read_model
from mcugrad.lower import Options, Program, lower
from mcugrad.lower.read_back import trained_weights
from mcugrad.memory import Layout, place
from mcugrad.plan.assemble import assemble
from mcugrad.schedule import schedule


@dataclass(frozen=True, slots=True)
class Compiled:
    """Every stage's result, from the user's model to the plan's bytes. ``fresh_head``: the model's last layer was replaced.

    ``lowered``: every step whole; ``program``: the same work, in stripes where that saves memory. ``order``: how the channels of
    ``train.graph`` stand differently from the model's. ``ram``: bytes that ARENA, STATE and IO may have together; None: as few as come
    without computing anything twice.
    """

    model: Graph
    fresh_head: bool
    train: TrainGraph
    lowered: Program
    program: Program
    layout: Layout
    plan: bytes
    order: ChannelOrder
    ram: int | None

    def with_whole_steps(self) -> Compiled:
        """The same plan with every tensor in one piece, for a look inside: equal results, the same STATE, more memory."""
        layout = place(self.lowered)
        return replace(self, program=self.lowered, layout=layout, plan=assemble(self.lowered, layout))

    def trained_model(self, state: bytes) -> Graph:
        """The model, its channels as they came, with the trained values of a STATE. Raises PlanError for a STATE of another size."""
        return with_weights(self.model, in_model_order(self.order, trained_weights(self.train.graph, self.program, self.layout, state)))


def compile_model(
    path: Path,
    scheme: str | None,
    classes: int | None = None,
    options: Options | None = None,
    loss: Loss | None = None,
    channels: Channels = Channels.FIRST,
    ram: int | None = None,
) -> Compiled:
    """Compile a plan for a model file. ``classes`` asks for a fresh head of that many outputs; without a scheme the plan only predicts.

    Without ``loss`` the end of the model says which. ``channels``: those that a share of a layer trains.
    """
    model = read_model(path)
    if classes is not None:
        return compile_graph(replace_head(model, classes), scheme, options, loss, fresh_head=True, channels=channels, ram=ram)
    return compile_graph(model, scheme, options, loss, channels=channels, ram=ram)


def compile_graph(
    model: Graph,
    scheme: str | None,
    options: Options | None = None,
    loss: Loss | None = None,
    *,
    fresh_head: bool = False,
    channels: Channels = Channels.FIRST,
    ram: int | None = None,
) -> Compiled:
    """Compile a plan for a graph. ``ram``: bytes that ARENA, STATE and IO may have together; a plan that needs more is returned as well.

    Work is given for memory only as far as that demands; with 0 as far as it goes.
    """
    graph = normalize(model)
    wanted = parse_scheme(scheme, graph) if scheme is not None else None
    graph, order = order_by_norm(graph, wanted.slices(graph) if wanted and channels is Channels.NORM else {})
    train = differentiate(graph, wanted, loss) if wanted else only_predict(graph)
    lowered = lower(train, options)
    program, layout = schedule(lowered, ram)
    return Compiled(model, fresh_head, train, lowered, program, layout, assemble(program, layout), order, ram)
