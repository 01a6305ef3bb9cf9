"""Makes a wanted plan fit: the compiler may spend instructions on it, and where that is not enough, the nearest smaller scheme is named."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

from mcugrad.autodiff import Loss
from mcugrad.autodiff.scheme import Scheme, trained_channels
from mcugrad.board import Board
from mcugrad.errors import McugradError
from mcugrad.graph import Graph
from mcugrad.graph.permute import Channels
from mcugrad.lower import Options
from mcugrad.pipeline import Compiled, compile_graph, compile_model
from mcugrad.plan import Region
from mcugrad.report import PlanReport, exceeds_ram, report, require_fit, room_for_plan

LEAST_SHARE = 0.125
"""The share of its channels below which a layer is rather not trained."""


@dataclass(frozen=True, slots=True)
class Request:
    """What plan, train, check, bench and build are asked to compile. ``sram``: bytes of RAM that may be used, None for all of the board's.

    ``least``: work is given for memory even without need.
    """

    model: Path
    scheme: str
    classes: int | None
    options: Options
    loss: Loss | None
    channels: Channels
    sram: int | None = None
    least: bool = False

    def compile(self, ram: int | None = None) -> Compiled:
        """The plan. ``ram``: bytes that ARENA, STATE and IO may have together."""
        return compile_model(self.model, self.scheme, self.classes, self.options, self.loss, self.channels, 0 if self.least else ram)


@dataclass(frozen=True, slots=True)
class Smaller:
    """A scheme that needs less: in the words of --train, and the bytes of a trained weight."""

    words: str
    ws: int

    def __str__(self) -> str:
        return f"--train {self.words}" + (" --rounding stochastic" if self.ws == 1 else "")


def fit(request: Request, compiled: Compiled, board: Board) -> tuple[Compiled, PlanReport]:
    """A plan of ``request`` and its report. Where it needs more RAM than there is, it is compiled again for what there is.

    The result may still need more: ``require_fit_of`` says so.
    """
    r = report(compiled, board, request.sram)
    if exceeds_ram(r) and room_for_plan(r) > 0 and not request.least:
        compiled = request.compile(room_for_plan(r))
        r = report(compiled, board, request.sram)
    return compiled, r


def require_fit_of(request: Request, compiled: Compiled, r: PlanReport) -> None:
    """Raise FitError where the plan does not fit, with what does in its place."""
    require_fit(r, lambda: nearest(request, compiled, r))


def nearest(request: Request, compiled: Compiled, r: PlanReport) -> str:
    """What the user could do: the first of ever smaller schemes that fits, ready to be pasted; or that none does.

    Bisects the list, which is in the order of what is given up: the scheme that is named fits, the one before it does not.
    """
    steps = list(smaller(compiled.train.graph, compiled.train.scheme, request.options))
    needs: dict[int, int | None] = {}

    def fits(k: int) -> bool:
        needs[k] = _need(request, compiled, r, steps[k])
        return needs[k] is not None and needs[k] <= r.ram_limit  # type: ignore[operator]

    if not steps or not fits(len(steps) - 1):
        least = f"{steps[-1]} needs {needs[len(steps) - 1]:,} bytes" if steps and needs[len(steps) - 1] else f"--train {request.scheme}"
        return f"no smaller scheme fits, even {least}; take another board or a smaller model"
    bad, good = -1, len(steps) - 1
    while good - bad > 1:
        middle = (bad + good) // 2
        bad, good = (bad, middle) if fits(middle) else (middle, good)
    return f"train less, nearest is {steps[good]} with {needs[good]:,} bytes; or pick another board"


def _need(request: Request, compiled: Compiled, r: PlanReport, smaller: Smaller) -> int | None:
    """Bytes of RAM of a smaller scheme; None where it cannot be compiled or does not fit the flash."""
    options = replace(request.options, ws=smaller.ws)
    try:
        found = compile_graph(
            compiled.model,
            smaller.words,
            options,
            request.loss,
            fresh_head=compiled.fresh_head,
            channels=request.channels,
            ram=0 if request.least else room_for_plan(r),
        )
    except McugradError:
        return None
    if r.flash_limit and len(found.plan) + r.flash.firmware > r.flash_limit:
        return None
    return sum(found.layout.sizes[region] for region in (Region.ARENA, Region.STATE, Region.IO)) + r.ram.stack + r.ram.runtime


# ---- smaller schemes --------------------------------------------------------------------------------------------------


def smaller(graph: Graph, scheme: Scheme, options: Options) -> Iterator[Smaller]:
    """Ever smaller schemes: int8 weights, half the channels of the largest, then no weights, then no biases of the deepest layers.

    The last layer keeps what the scheme trains of it; a micro-batch keeps its 16-bit weights.
    """
    ws = options.ws
    if ws == 2 and options.batch == 1 and scheme.weights:
        ws = 1
        yield Smaller(words(graph, scheme), ws)
    for less in _less(graph, scheme):
        yield Smaller(words(graph, less), ws)


def _less(graph: Graph, scheme: Scheme) -> Iterator[Scheme]:
    last = len(graph.layers) - 1
    while wide := [k for k, share in scheme.weights.items() if k != last and share > LEAST_SHARE and _trained(graph, k, share)[0] > 1]:
        largest = max(wide, key=lambda k: (_trained(graph, k, scheme.weights[k])[1], k))
        share = max(LEAST_SHARE, scheme.weights[largest] / 2)
        scheme = Scheme({**scheme.weights, largest: share}, scheme.biases)
        yield scheme
    for k in sorted(set(scheme.weights) - {last}):
        scheme = Scheme({j: share for j, share in scheme.weights.items() if j != k}, scheme.biases)
        if scheme.layers:
            yield scheme
    for k in sorted(scheme.biases - {last}):
        scheme = Scheme(scheme.weights, scheme.biases - {k})
        if scheme.layers:
            yield scheme


def _trained(graph: Graph, layer: int, share: float) -> tuple[int, int]:
    """(channels, weights) that a share of a layer trains."""
    weights = graph.tensors[graph.layers[layer].inputs[1]]
    channels = trained_channels(graph, graph.layers[layer], share)
    return channels, channels * (weights.size // weights.shape[-1])


def words(graph: Graph, scheme: Scheme) -> str:
    """A scheme in the words of --train, as few as say it."""
    last = len(graph.layers) - 1
    head = scheme.weights.get(last) == 1.0 and last in scheme.biases
    count = next((n for n in range(last + 2) if last - n not in scheme.biases), 0)
    rest = sorted(k for k in scheme.biases if k <= last - count)
    found = ["head"] if head else []
    found += [f"bias:{count}"] if count > head else []
    found += [f"bias:{graph.layers[k].name}" for k in rest]
    return ",".join(found + [_weights(graph, k, share) for k, share in sorted(scheme.weights.items()) if not (head and k == last)])


def _weights(graph: Graph, layer: int, share: float) -> str:
    fraction = Fraction(share).limit_denominator(64)
    ratio = "" if share == 1 else f":{fraction}" if float(fraction) == share else f":{share!r}"
    return f"weights:{graph.layers[layer].name}{ratio}"
