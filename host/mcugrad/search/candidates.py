"""What a scheme may be made of: the biases of the last k layers, and each layer's weights at a few ratios.

A choice is a tuple of options, one a slot. Slot 0 is the number of biases: option j trains those of the last j + 1 layers. Slot 1 + l is
layer l: option 0 leaves its weights alone, option j trains them at its j-th ratio. A higher option trains all that a lower one does. All
zero is the head alone, whose weights and bias are always trained.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mcugrad.autodiff import Loss, differentiate
from mcugrad.autodiff.scheme import Scheme, trained_channels
from mcugrad.errors import ModelError
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
    """One layer. ``levels`` ascend; none for the head and for layers that cannot be trained. ``biases``: 0 where it has none."""

    name: str
    levels: tuple[Level, ...]
    biases: int
    outputs: int


@dataclass(frozen=True, slots=True)
class Candidates:
    """All layers in graph order. Layers before ``first`` cannot be trained, ``why`` says so."""

    layers: tuple[LayerChoice, ...]
    first: int
    why: str

    @property
    def none(self) -> Choice:
        """The head alone."""
        return (0,) * (1 + len(self.layers))

    @property
    def options(self) -> tuple[int, ...]:
        """How many options each slot has."""
        return (len(self.layers) - self.first, *(1 + len(layer.levels) for layer in self.layers))

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
        for layer in self.layers[self.first : -1][::-1]:
            biases.append(biases[-1] + BIAS_BYTES * layer.biases)
        return (tuple(biases), *((0, *(ws * level.parameters for level in layer.levels)) for layer in self.layers))


def find_candidates(graph: Graph, loss: Loss | None) -> Candidates:
    """The candidates of a normalized graph. Raises ModelError where not even the head can be trained."""
    first, why = _first_trainable(graph, loss)
    last = len(graph.layers) - 1
    layers = tuple(_layer(graph, op, trainable=first <= k < last) for k, op in enumerate(graph.layers))
    return Candidates(layers, first, why)


def _first_trainable(graph: Graph, loss: Loss | None) -> tuple[int, str]:
    """The first layer from which on everything can be trained, and what stands in the way of those before."""
    why = ""
    for first in range(len(graph.layers)):
        numbers = range(first, len(graph.layers))
        try:
            differentiate(graph, Scheme(dict.fromkeys(numbers, 1.0), frozenset(numbers)), loss)
        except ModelError as error:
            if first == len(graph.layers) - 1:
                raise
            why = error.text
        else:
            return first, why
    raise ModelError("the model has no layer with weights", "nothing to train")


def _layer(graph: Graph, op: Op, *, trainable: bool) -> LayerChoice:
    outputs = graph.tensors[op.outputs[0]].size
    biases = graph.tensors[op.inputs[2]].size if len(op.inputs) == 3 else 0
    return LayerChoice(op.name, _levels(graph, op) if trainable else (), biases, outputs)


def _levels(graph: Graph, op: Op) -> tuple[Level, ...]:
    """One level for each number of channels that some ratio gives; the largest of equal ratios names it."""
    w, x = graph.tensors[op.inputs[1]], graph.read(op)
    ratios = {trained_channels(graph, op, ratio): ratio for ratio in RATIOS}
    total = w.shape[-1]
    return tuple(
        Level(ratio, n, w.size // total * n, macs(graph, op) * n // total, x.size * n // total) for n, ratio in sorted(ratios.items())
    )
