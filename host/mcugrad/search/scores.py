"""How much each candidate contributes to learning: by the Fisher information of its gradients, or by what a short training run gains.

Fisher: F = mean over samples of the sum of g², with g the gradient in real units of exactly the values that the candidate updates. The
update is plain SGD in real units, so lr · F is how far one step lowers the loss, to first order.
TinyTrain (arXiv 2307.09988): F / (parameters · MACs), each as a share of the largest layer's.
Fine-tuning (arXiv 2206.15472, section 3.2): accuracy on held-out samples after a short run that trains the head and the candidate, less
that of the head alone; of a regression, by how much the mean squared error is lower.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mcugrad.autodiff import Loss
from mcugrad.data import DataSet
from mcugrad.errors import DataError, UnavailableError
from mcugrad.graph import DwConv2D, Graph, Op
from mcugrad.graph.permute import Channels, Order, order_by_norm
from mcugrad.lower import Options
from mcugrad.lower.weights import read_layer
from mcugrad.native import NativeMachine
from mcugrad.pipeline import Compiled, compile_graph
from mcugrad.ref.epilogue import exponent
from mcugrad.ref.run import Machine, Sample
from mcugrad.search.candidates import Candidates, Choice
from mcugrad.training.recipe import Recipe

SETTLE = 64
"""Samples that settle the exponents before gradients are measured; nothing is learned from them."""

WARM_UP = 256
"""Training steps of a fresh head before gradients are measured: its weights are zero, and no error would pass it."""

WARM_UP_LR = 0.1

ONLY_FORWARD = 1e30
"""A --skip that no |dL/dlogit| reaches: the loss is computed, and nothing behind it."""

HELD_OUT = 0.2
"""The share of the data that is held out where no other data is given."""


class By(enum.Enum):
    """How contributions are found."""

    FISHER = "fisher"
    TINYTRAIN = "tinytrain"
    FINETUNE = "finetune"

    @property
    def trains(self) -> bool:
        return self is By.FINETUNE


@dataclass(frozen=True, slots=True)
class Settings:
    """``samples``: of Fisher scores. ``steps``: of each short run. ``ws``: bytes of a trained weight.

    ``loss`` None: the model's end says. ``channels``: those that a ratio trains.
    """

    by: By
    samples: int
    steps: int
    lr: float
    seed: int
    ws: int
    loss: Loss | None
    channels: Channels = Channels.FIRST

    @property
    def options(self) -> Options:
        return Options(ws=self.ws, seed=self.seed)

    def recipe(self, lr: float, steps: int, samples: int) -> Recipe:
        """``steps`` steps over so many samples, half a cosine from ``lr`` down to 0."""
        return Recipe(-(-steps // samples), lr, "cosine", 0.0 if self.loss is Loss.MSE else 0.1, self.seed)


@dataclass(frozen=True, slots=True)
class Contributions:
    """``values[slot][option]`` of Candidates; option 0 is worth 0. ``unit`` says what the numbers are."""

    values: tuple[tuple[float, ...], ...]
    unit: str


Truth = tuple[int, Sample | None]
"""Label, and target of a regression."""


def truth_of(data: DataSet, k: int) -> Truth:
    label = 0 if data.y is None else int(data.y[k])
    return label, None if data.target is None else data.target[k].reshape(-1)


def subset(data: DataSet, which: Sequence[int] | npt.NDArray[np.int64]) -> DataSet:
    """Some samples of a data set, in the order given."""
    y = None if data.y is None else data.y[which]
    return DataSet(data.x[which], y, data.notes, None if data.target is None else data.target[which])


def split(data: DataSet, seed: int) -> tuple[DataSet, DataSet]:
    """(to train on, held out): the same samples at every call. Raises DataError where there are too few."""
    held = round(HELD_OUT * len(data))
    if held == 0:
        raise DataError(f"{len(data)} samples are too few to hold some out", "give others with --eval")
    order = np.random.default_rng(seed).permutation(len(data))
    return subset(data, order[held:]), subset(data, order[:held])


def fast_machine(plan: bytes) -> NativeMachine | Machine:
    """The C library; without a C compiler the NumPy reference, which computes the same bits more slowly."""
    try:
        return NativeMachine(plan)
    except UnavailableError:
        return Machine(plan)


def train_on(machine: NativeMachine | Machine, data: DataSet, recipe: Recipe, steps: int) -> None:
    """``steps`` training steps in the recipe's order."""
    for step, k in enumerate(itertools.islice(recipe.order(len(data)), steps)):
        label, target = truth_of(data, k)
        machine.train(data.x[k], label, recipe.learning_rate(step, steps), recipe.skip, target)


# ---- Fisher -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Slice:
    """One update step: ``alive`` (O,) are the channels that it moves, gradients · ``scale`` are in real units.

    ``channels``: how many each level trains, the first in ``order``; None: as they stand.
    """

    slot: int
    is_bias: bool
    alive: npt.NDArray[np.bool_]
    scale: float
    depthwise: bool
    channels: tuple[int, ...]
    order: Order | None


@dataclass(frozen=True, slots=True, eq=False)
class FisherJob:
    """What every sample's gradients are measured with: a plan that trains everything, at a state with settled exponents."""

    plan: bytes
    state: bytes
    slices: Mapping[int, _Slice]


FisherTask = tuple[Sample, Truth]
FisherScore = dict[str, list[list[float]]]
"""``weights``: of each layer, the sum of g² over the slice of each level; ``biases``: of each layer, over its bias."""


def fisher_job(model: Graph, candidates: Candidates, data: DataSet, settings: Settings, *, fresh_head: bool) -> FisherJob:
    """Warm up a fresh head, compile a plan that trains all that can be trained, and settle its exponents."""
    if fresh_head:
        model = _with_warm_head(model, data, settings)
    compiled = compile_graph(model, _everything(candidates), settings.options, settings.loss)
    machine = fast_machine(compiled.plan)
    for k in range(min(SETTLE, len(data))):
        label, target = truth_of(data, k)
        machine.train(data.x[k], label, 0.0, 0.0, target)
    return FisherJob(compiled.plan, machine.state, _slices(compiled, candidates, settings.channels))


def _with_warm_head(model: Graph, data: DataSet, settings: Settings) -> Graph:
    compiled = compile_graph(model, "head", settings.options, settings.loss)
    machine = fast_machine(compiled.plan)
    train_on(machine, data, settings.recipe(WARM_UP_LR, WARM_UP, len(data)), WARM_UP)
    return compiled.trained_model(machine.state)


def _everything(candidates: Candidates) -> str:
    full = tuple(n - 1 for n in candidates.options)
    return candidates.words(full)


def _slices(compiled: Compiled, candidates: Candidates, which: Channels) -> dict[int, _Slice]:
    """Step index -> the update that it makes. (The head's updates are no candidates.)"""
    graph = compiled.train.graph
    number = {op.name: k for k, op in enumerate(graph.layers[:-1])}
    found = {}
    for index, step in enumerate(compiled.program.steps):
        if "_upd_" not in step.kind.name or step.label not in number:
            continue
        k = number[step.label]
        layer, is_bias = read_layer(graph, graph.layers[k]), step.kind.name.startswith("bias")
        channels = tuple(level.channels for level in candidates.layers[k].levels)
        order = None if is_bias or which is Channels.FIRST else _norm_order(graph, k)
        found[index] = _Slice(k, is_bias, ~layer.dead, 1.0 if is_bias else layer.x_scale, layer.depthwise, channels, order)
    return found


def _norm_order(graph: Graph, layer: int) -> Order | None:
    """The order of the channels when this layer alone is sliced. Layers that share channels share an order, which may differ a little."""
    op: Op = graph.layers[layer]
    found = order_by_norm(graph, {layer: 1})[1].get(op.name)
    return None if found is None else (found.outputs if isinstance(op.kind, DwConv2D) else found.inputs)


def fisher_of_sample(job: FisherJob, task: FisherTask) -> FisherScore:
    """The squared gradients of one sample. Every sample starts from the same state."""
    sample, (label, target) = task
    machine = Machine(job.plan)
    machine.state = job.state
    layers = 1 + max((s.slot for s in job.slices.values()), default=-1)
    weights: list[list[float]] = [[] for _ in range(layers)]
    biases: list[list[float]] = [[] for _ in range(layers)]
    for s in job.slices.values():
        (biases if s.is_bias else weights)[s.slot] = [0.0] * (1 if s.is_bias else len(s.channels))

    def observe(index: int, _kind: str, arrays: Mapping[str, npt.NDArray[np.generic]]) -> None:
        s = job.slices.get(index)
        if s is not None:
            unit = float(np.asarray(arrays["unit"])[0]) * 2.0 ** exponent(np.asarray(arrays["ry"])) * s.scale
            gradient = np.asarray(arrays["grad"], np.float64) * unit
            (biases if s.is_bias else weights)[s.slot] = _energy(s, gradient)

    machine.observe = observe
    machine.train(sample, label, 0.0, 0.0, target)
    return {"weights": weights, "biases": biases}


def _energy(s: _Slice, gradient: npt.NDArray[np.float64]) -> list[float]:
    """Sums of g² over the channels that are alive: of the bias, or of the slice of each level. gradient (O,) or (O, …, I)."""
    squares = gradient.reshape(len(s.alive), -1) ** 2 * s.alive[:, None]
    if s.is_bias:
        return [float(squares.sum())]
    inputs = s.channels[-1]
    per_channel = squares.sum(axis=1) if s.depthwise else squares.reshape(len(s.alive), -1, inputs).sum(axis=(0, 1))
    total = np.cumsum(per_channel if s.order is None else per_channel[list(s.order)])
    return [float(total[n - 1]) for n in s.channels]


def fisher_tasks(data: DataSet, settings: Settings) -> list[FisherTask]:
    """A few samples in a random order, the same at every call: files are often sorted by class."""
    order = np.random.default_rng(settings.seed).permutation(len(data))[: settings.samples]
    return [(data.x[k], truth_of(data, k)) for k in order]


def fisher_contributions(candidates: Candidates, scores: Sequence[FisherScore], by: By) -> Contributions:
    """The mean over the samples; for TinyTrain by the cost of each slice."""
    cost = _costs(candidates) if by is By.TINYTRAIN else (lambda _parameters, _macs: 1.0)
    n = len(scores)
    biases = [0.0]
    for k, layer in reversed(list(enumerate(candidates.layers[:-1]))):
        fisher = sum(sum(s["biases"][k]) for s in scores) / n
        biases.append(biases[-1] + (fisher / cost(layer.biases, layer.outputs) if layer.biases else 0.0))
    weights = []
    for k, layer in enumerate(candidates.layers):
        sums = [sum(s["weights"][k][j] for s in scores) / n for j in range(len(layer.levels))]
        weights.append((0.0, *(f / cost(level.parameters, level.macs) for f, level in zip(sums, layer.levels, strict=True))))
    unit = "Fisher information" + (" by parameters and MACs" if by is By.TINYTRAIN else "")
    return Contributions((tuple(biases), *weights), unit)


def _costs(candidates: Candidates) -> Callable[[int, int], float]:
    """Parameters and MACs as shares of the largest layer's, multiplied."""
    levels = [level for layer in candidates.layers for level in layer.levels]
    parameters, macs = (max((getattr(level, name) for level in levels), default=1) for name in ("parameters", "macs"))
    return lambda p, m: (p / parameters) * (m / macs)


# ---- fine-tuning ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class FinetuneJob:
    """What every short run trains on."""

    model: Graph
    data: DataSet
    held_out: DataSet
    settings: Settings


FinetuneScore = dict[str, float]
"""``accuracy`` (of a regression 0) and ``loss``, on the held-out samples after the run."""


def finetune(job: FinetuneJob, words: str) -> FinetuneScore:
    """Train from the model as it is with the scheme ``words``, then measure on the held-out samples."""
    settings = job.settings
    machine = fast_machine(compile_graph(job.model, words, settings.options, settings.loss, channels=settings.channels).plan)
    train_on(machine, job.data, settings.recipe(settings.lr, settings.steps, len(job.data)), settings.steps)
    correct, loss = 0, 0.0
    for k in range(len(job.held_out)):
        label, target = truth_of(job.held_out, k)
        result = machine.train(job.held_out.x[k], label, 0.0, ONLY_FORWARD, target)
        correct += result.argmax == label
        loss += result.loss
    n = len(job.held_out)
    return {"accuracy": correct / n if job.held_out.y is not None else 0.0, "loss": loss / n}


def single_choices(candidates: Candidates) -> list[Choice]:
    """The head alone, then every option of every slot alone."""
    none = candidates.none
    singles = [(*none[:slot], option, *none[slot + 1 :]) for slot, count in enumerate(candidates.options) for option in range(1, count)]
    return [none, *singles]


def finetune_contributions(candidates: Candidates, scores: Mapping[Choice, FinetuneScore], *, regression: bool) -> Contributions:
    """What each option alone gains over the head alone."""
    base = scores[candidates.none]

    def gain(score: FinetuneScore) -> float:
        return base["loss"] - score["loss"] if regression else score["accuracy"] - base["accuracy"]

    values = [[0.0] * count for count in candidates.options]
    for choice, score in scores.items():
        for slot, option in enumerate(choice):
            if option:
                values[slot][option] = gain(score)
    return Contributions(tuple(map(tuple, values)), "mean squared error gained" if regression else "accuracy gained")
