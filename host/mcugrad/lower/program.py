"""What lowering returns: step records whose references are still values without an address."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mcugrad.plan import Region
from mcugrad.plan.opsdef import StepKind


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A piece of one region. ``data`` is the content in CONST, or the initial content in STATE.

    A view has no place of its own: it is the ``nbytes`` bytes from ``at`` on of its ``base``, which is no view.
    """

    name: str
    region: Region
    nbytes: int
    align: int
    data: bytes | None = None
    base: Value | None = None
    at: int = 0

    @property
    def root(self) -> Value:
        """The value that has a place: the base of a view, or the value itself."""
        return self if self.base is None else self.base

    def view(self, at: int, nbytes: int) -> Value:
        """The bytes [at, at + nbytes) of this value; the value itself where that is all of it."""
        assert at >= 0 and nbytes > 0 and at + nbytes <= self.nbytes, f"{self.name}: bytes {at} to {at + nbytes} of {self.nbytes}"
        if nbytes == self.nbytes:
            return self
        return Value(self.name, self.region, nbytes, self.align, None, self.root, self.at + at)


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """A step record to be: ``label`` is the layer or tensor it works for; an unused reference is None."""

    kind: StepKind
    label: str
    scalars: Mapping[str, float]
    refs: Mapping[str, Value | None]

    @property
    def name(self) -> str:
        return f"{self.kind.name} {self.label}"


@dataclass(frozen=True, slots=True, eq=False)
class TrainedLayer:
    """Where a layer's trained values are in STATE, for the way back into the graph.

    ``weights`` holds the first ``channels`` input channels (channels of a depthwise layer), ``ws`` bytes each: 2 is Q8.8 with the half
    added, 1 is int8. ``bias`` is int32 with ``bf`` fraction bits and the half added. None: not trained.
    """

    layer: int
    name: str
    weights: Value | None
    channels: int
    ws: int
    bias: Value | None
    bf: int


Segments = tuple[tuple[Draft, ...], tuple[Draft, ...], tuple[Draft, ...], tuple[Draft, ...], tuple[Draft, ...]]
"""Forward, eval, loss, backward, commit."""


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """The five segments of a plan (forward, eval, loss, backward, commit) and the values that host and application touch.

    ``sample``: the graph's inputs, one behind the other; it lives in ARENA until the last step that reads it. ``outputs``: the graph's
    outputs, one behind the other in IO. ``target``: what a regression loss compares with. ``tensors``: graph tensor -> its value.
    ``logits``: the head's int32 accumulators, None where the loss does not read them.
    ``fixed``: the values of CONST, STATE and IO in the order in which they are placed, whatever becomes of the order of the steps.
    """

    segments: Segments
    sample: Value
    target: Value | None
    args: Value
    result: Value
    outputs: tuple[Value, ...]
    rng: Value
    classes: int
    model_hash: int
    tensors: Mapping[int, Value]
    logits: Value | None
    trained: tuple[TrainedLayer, ...]
    fixed: tuple[Value, ...]
    notes: tuple[str, ...]

    @property
    def steps(self) -> tuple[Draft, ...]:
        return tuple(step for segment in self.segments for step in segment)

    @property
    def step_macs(self) -> tuple[int, ...]:
        """Multiply-accumulates of every step."""
        return tuple(macs(step) for step in self.steps)

    @property
    def forward_macs(self) -> int:
        return sum(self.step_macs[: len(self.segments[0])])

    @property
    def backward_macs(self) -> int:
        return sum(self.step_macs[len(self.segments[0]) :])


def macs(step: Draft) -> int:
    """Multiply-accumulates of a step; 0 for what only moves or sums."""
    s = {k: int(v) for k, v in step.scalars.items()}
    stem, _, what = step.kind.name.partition("_")
    trained = what.startswith("upd")
    if stem == "conv2d":
        return s["p"] * s["q"] * s["o"] * s["r"] * s["s"] * (s["it"] if trained else s["i"])
    if stem == "dwconv2d":
        return s["p"] * s["q"] * s["r"] * s["s"] * (s["ot"] if trained else s["o"])
    if stem == "expand":
        return s["h"] * s["w"] * s["o"] * s["i"] + s["p"] * s["q"] * s["o"] * s["r"] * s["s"]
    if stem == "linear":
        return s["n"] * s["o"] * (s["it"] if trained else s["i"])
    return 0
