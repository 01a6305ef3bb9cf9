"""What a scheme may be made of: the biases of the last k layers, and each layer's weights at a few ratios.

A choice is a tuple of options, one a slot. Slot 0 is the number of biases: option j trains those of the last j + 1 layers. Slot 1 + l is
layer l: option 0 leaves its weights alone, option j trains them at its j-th ratio. A higher option trains all that a lower one does. All
zero is the head alone, whose weights and bias are always trained.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mcugrad.autodiff.scheme import trained_channels
from mcugrad.graph import Graph, Op
from mcugrad.graph.edit import macs

RATIOS = (1 / 8, 1 / 4, 1 / 2, 1.0)
BIAS_BYTES = 4

Choice = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Level:
    """One ratio of a layer: ``channels`` leading input channels (of a depthwise layer: channels) of all that it has.

    ``parameters`` and ``macs`` of that slice; ``saved_bytes`` of the layer's input that its gradient reads.
    """

    ratio: float
    channels: int
    parameters: int
    macs: int
    saved_bytes: int


@dataclass(frozen=True, slots=True)
class LayerChoice:
    """One layer. ``levels`` ascend; none for the head. ``biases``: 0 where it has none. ``outputs``: elements of its output."""

    name: str
    levels: tuple[Level, ...]
    biases: int
    outputs: int


@dataclass(frozen=True, slots=True)
class Candidates:
    """All layers in graph order; the last is the head."""

    layers: tuple[LayerChoice, ...]

    @property
    def none(self) -> Choice:
        """The head alone."""
        return (0,) * (1 + len(self.layers))

    @property
    def options(self) -> tuple[int, ...]:
        """How many options each slot has."""
        return (len(self.layers), *(1 + len(layer.levels) for layer in self.layers))

    def depth(self, choice: Choice) -> int:
        """How many layers from the end the backward pass has to reach: 1 is the head."""
        deepest = next((k for k, option in enumerate(choice[1:]) if option), len(self.layers) - 1)
        return max(1 + choice[0], len(self.layers) - deepest)

    def words(self, choice: Choice) -> str:
        """In the words of --train."""
        words = ["head"] + ([f"bias:{1 + choice[0]}"] if choice[0] else [])
        return ",".join(words + [f"weights:{name}" + (f":{ratio!r}" if ratio < 1 else "") for name, ratio in self._weights(choice).items()])

    def as_json(self, choice: Choice) -> dict[str, Any]:
        """As the JSON file that --train reads."""
        return {"head": True, "bias": 1 + choice[0] if choice[0] else 0, "weights": self._weights(choice)}

    def _weights(self, choice: Choice) -> Mapping[str, float]:
        pairs = zip(self.layers, choice[1:], strict=True)
        return {layer.name: layer.levels[option - 1].ratio for layer, option in pairs if option}

    def trained_bytes(self, ws: int) -> tuple[tuple[int, ...], ...]:
        """Bytes of trained values in STATE, of every option of every slot; ``ws`` bytes a weight."""
        biases = [0]
        for layer in self.layers[-2::-1]:
            biases.append(biases[-1] + BIAS_BYTES * layer.biases)
        return (tuple(biases), *((0, *(ws * level.parameters for level in layer.levels)) for layer in self.layers))


def find_candidates(graph: Graph) -> Candidates:
    """The candidates of a normalized graph."""
    last = len(graph.layers) - 1
    return Candidates(tuple(_layer(graph, op, is_head=k == last) for k, op in enumerate(graph.layers)))


def _layer(graph: Graph, op: Op, *, is_head: bool) -> LayerChoice:
    outputs = graph.tensors[op.outputs[0]].size
    biases = graph.tensors[op.inputs[2]].size if len(op.inputs) == 3 else 0
    return LayerChoice(op.name, () if is_head else _levels(graph, op), biases, outputs)


def _levels(graph: Graph, op: Op) -> tuple[Level, ...]:
    """One level for each number of channels that some ratio gives; the largest of equal ratios names it."""
    w, x = graph.tensors[op.inputs[1]], graph.read(op)
    ratios = {trained_channels(graph, op, ratio): ratio for ratio in RATIOS}
    total = w.shape[-1]
    return tuple(
        Level(ratio, n, w.size // total * n, macs(graph, op) * n // total, x.size * n // total) for n, ratio in sorted(ratios.items())
    )
