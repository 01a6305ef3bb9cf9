"""Forward passes side by side: reference, host C and boards against an oracle, on random, boundary and real inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from mcugrad.errors import UnavailableError, VerifyError
from mcugrad.graph import Linear
from mcugrad.lower.program import Value
from mcugrad.pipeline import Compiled
from mcugrad.proof.oracle import Int8, LiteRtOracle, Oracle
from mcugrad.ref.run import Machine

LITERT_LINEAR = 1
"""LiteRT requantizes fully connected layers with another rounding than TensorFlow Lite Micro: its inner tensors may be off by one there."""

Executor = Callable[[Int8], Int8]
"""The sample as it stands in IO -> the output as it stands in IO."""


@dataclass(frozen=True, slots=True)
class Compared:
    """How an executor did against the oracle. ``largest``: the largest difference in units of the last place."""

    executor: str
    inputs: int
    values: int
    equal: int
    largest: int


def boundary_inputs(sizes: Sequence[int], zero_points: Sequence[int], count: int) -> list[list[Int8]]:
    """Inputs at the edges: all at one end, at the zero point and beside it, alternating, one value out of line."""
    fills = [-128, 127, -127, 126, 0, -1, 1]
    made: list[list[Int8]] = [[np.full(n, v, np.int8) for n in sizes] for v in fills]
    made += [[np.full(n, np.clip(z + d, -128, 127), np.int8) for n, z in zip(sizes, zero_points, strict=True)] for d in (0, -1, 1)]
    made += [
        [np.resize(np.array(pair, np.int8), n) for n in sizes] for pair in ((-128, 127), (127, -128), (127, -128, -128), (-128, 127, 127))
    ]
    rng = np.random.default_rng(0)
    while len(made) < count:
        row = [np.full(n, rng.choice((-128, 127)), np.int8) for n in sizes]
        for values in row:
            values[rng.integers(len(values))] = rng.integers(-128, 128)
        made.append(row)
    return made[:count]


def random_inputs(sizes: Sequence[int], count: int, seed: int) -> list[list[Int8]]:
    """Uniform int8 inputs."""
    rng = np.random.default_rng(seed)
    return [[rng.integers(-128, 128, n).astype(np.int8) for n in sizes] for _ in range(count)]


def pack(values: Sequence[Int8]) -> Int8:
    """Several inputs as one sample: one behind the other, each at a multiple of 4 bytes."""
    parts = [np.pad(v, (0, -len(v) % 4)) for v in values[:-1]]
    return np.concatenate([*parts, values[-1]])


def unpack(flat: Int8, sizes: Sequence[int]) -> list[Int8]:
    """The outputs in an output block."""
    parts, at = [], 0
    for n in sizes:
        parts.append(flat[at : at + n])
        at += n + -n % 4
    return parts


def verify(
    compiled: Compiled,
    oracle: Oracle,
    executors: Mapping[str, Executor],
    inputs: Sequence[list[Int8]],
    on_input: Callable[[], None] = lambda: None,
) -> list[Compared]:
    """Run every input through the oracle and every executor. Raises VerifyError at the first difference above the oracle's tolerance."""
    sizes = [compiled.train.graph.tensors[i].size for i in compiled.train.graph.outputs]
    found = {name: Compared(name, 0, 0, 0, 0) for name in executors}
    for k, values in enumerate(inputs):
        wanted = np.concatenate(oracle.outputs(values)).astype(np.int16)
        for name, run in executors.items():
            difference = np.abs(np.concatenate(unpack(run(pack(values)), sizes)) - wanted)
            if difference.max(initial=0) > oracle.tolerance:
                raise _different(compiled, oracle, name, k, values, difference)
            found[name] = _counted(found[name], difference)
        on_input()
    return list(found.values())


def _counted(c: Compared, difference: npt.NDArray[np.int16]) -> Compared:
    equal, largest = int((difference == 0).sum()), int(difference.max(initial=0))
    return Compared(c.executor, c.inputs + 1, c.values + difference.size, c.equal + equal, max(c.largest, largest))


def _different(compiled: Compiled, oracle: Oracle, name: str, k: int, values: list[Int8], difference: npt.NDArray[np.int16]) -> VerifyError:
    at, wrong = int(difference.argmax()), np.count_nonzero(difference)
    layer = first_layer(compiled, values, oracle)
    return VerifyError(
        f"{name} differs from {oracle.name} at input {k}: output {at} by {difference[at]}, {wrong} of {difference.size} values{layer}",
        f"report it with the model file: at most {oracle.tolerance} was expected",
    )


def first_layer(compiled: Compiled, values: list[Int8], oracle: Oracle) -> str:
    """ "; first in layer …" by comparing the reference's inner tensors with LiteRT's; empty where that cannot be told."""
    litert = oracle.inside()
    layers = [] if litert is None else compare_layers(compiled, values, litert)
    wrong = next((layer for layer in layers if layer.wrong), None)
    if wrong is None:
        return "; the reference computes every layer as LiteRT does" if layers else ""
    return f"; first in {wrong.op} ({wrong.tensor}), {wrong.differing} of {wrong.size} values"


@dataclass(frozen=True, slots=True)
class LayerCompared:
    """One op's output: how many of its values differ between the reference and LiteRT."""

    op: str
    tensor: str
    size: int
    differing: int
    largest: int
    tolerance: int

    @property
    def wrong(self) -> bool:
        return self.largest > self.tolerance


@dataclass(slots=True)
class _Activations:
    """The reference's output of every op, each computed from LiteRT's inputs: a difference does not run on into the next layer."""

    compiled: Compiled
    theirs: Mapping[str, Int8]
    found: dict[int, Int8] = field(default_factory=dict)

    def __call__(self, index: int, kind: str, arrays: Mapping[str, npt.NDArray[np.generic]]) -> None:
        tensor = self._finished().get(index)
        if tensor is None:
            return
        self.found[tensor] = np.array(arrays["y"], np.int8)
        theirs = self.theirs.get(self.compiled.train.graph.tensors[tensor].name)
        if theirs is not None and theirs.size == arrays["y"].size:
            arrays["y"][...] = theirs

    def _finished(self) -> dict[int, int]:
        """Step -> the graph tensor that is whole behind it: a Concat writes its output in several steps."""
        program = self.compiled.program
        tensor_of: dict[Value, int] = {v: k for k, v in program.tensors.items()}
        last: dict[int, int] = {}
        for index, step in enumerate((*program.segments[0], *program.segments[1])):
            y = step.refs.get("y")
            if y is not None and y in tensor_of:
                last[tensor_of[y]] = index
        return {index: tensor for tensor, index in last.items()}


def compare_layers(compiled: Compiled, values: list[Int8], oracle: LiteRtOracle) -> list[LayerCompared]:
    """Every op's output in the reference against LiteRT's tensor of the same name, in execution order. Each op works on LiteRT's inputs."""
    compiled = compiled.with_whole_steps()
    oracle.outputs(values)
    inner = oracle.inner()
    machine = Machine(compiled.plan)
    machine.observe = seen = _Activations(compiled, inner)
    machine.predict(pack(values))
    graph = compiled.train.graph
    layers = []
    for op in graph.ops:
        name = graph.tensors[op.outputs[0]].name
        ours, theirs = seen.found.get(op.outputs[0]), inner.get(name)
        if ours is not None and theirs is not None and ours.size == theirs.size:
            difference = np.abs(ours.astype(np.int16) - theirs)
            tolerance = LITERT_LINEAR if isinstance(op.kind, Linear) else 0
            layers.append(LayerCompared(op.name, name, ours.size, int((difference > 0).sum()), int(difference.max()), tolerance))
    return layers


def require_layers(layers: Sequence[LayerCompared]) -> None:
    """Raise VerifyError that names the first op whose output differs; UnavailableError where none could be compared."""
    if not layers:
        raise UnavailableError(
            "no inner tensor could be compared", "the model's tensors have no names of their own: verify without --layerwise"
        )
    wrong = next((layer for layer in layers if layer.wrong), None)
    if wrong is not None:
        raise VerifyError(
            f"{wrong.op} ({wrong.tensor}) is the first layer that differs from LiteRT: {wrong.differing} of {wrong.size} values",
            "report it with the model file: forward must be exact",
        )
