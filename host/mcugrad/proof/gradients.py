"""How good the integer gradients are: each trained tensor's gradient against the float one at the same point."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from mcugrad.errors import VerifyError
from mcugrad.lower.program import Value
from mcugrad.lower.read_back import apply_state
from mcugrad.lower.weights import read_layer
from mcugrad.pipeline import Compiled
from mcugrad.proof.tape import Gradients, float_gradients, loss_error
from mcugrad.ref.run import Machine

MIN_MEDIAN = 0.99
MIN_P5 = 0.98
"""The bounds on the cosine, once the exponents have settled (numerics: worst layer of an 18-convolution pass .994, 5th percentile .989)."""

MAX_RELATIVE_ERROR = 0.15
"""The bound on the median relative error: sqrt(2 - 2 · MIN_MEDIAN), rounded up. A wrong scale leaves the cosine alone, and shows here."""

Samples = npt.NDArray[np.int8]
Truths = npt.NDArray[np.int64] | npt.NDArray[np.int8]
"""Labels (N,), or int8 targets (N, …) of a regression."""


@dataclass(frozen=True, slots=True)
class Quality:
    """One trained tensor. Cosine of integer and float gradient over the samples, and the median relative error |g - f| / |f|."""

    layer: str
    what: str
    median: float
    p5: float
    relative_error: float
    samples: int

    @property
    def good(self) -> bool:
        return self.samples == 0 or (self.median >= MIN_MEDIAN and self.p5 >= MIN_P5 and self.relative_error <= MAX_RELATIVE_ERROR)

    def as_dict(self) -> dict[str, Any]:
        """For JSON, which has no NaN: what was not measured is None."""
        return {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in asdict(self).items()}


@dataclass(slots=True)
class _Capture:
    """What one reference step shows: activations by tensor, the logits, gradients in real units."""

    compiled: Compiled
    activations: dict[int, npt.NDArray[np.int8]] = field(default_factory=dict)
    logits: npt.NDArray[np.int64] | None = None
    gradients: Gradients = field(default_factory=dict)

    def __call__(self, index: int, kind: str, arrays: Mapping[str, npt.NDArray[np.generic]]) -> None:
        step = self.compiled.program.steps[index]
        tensor_of: dict[Value, int] = {v: k for k, v in self.compiled.program.tensors.items()}
        for ref in step.kind.refs:
            value = step.refs[ref.name]
            if value is None or not ref.writes:
                continue
            if value in tensor_of:
                self.activations[tensor_of[value]] = np.array(arrays[ref.name], np.int8)
            elif value is self.compiled.program.logits:
                self.logits = np.array(arrays[ref.name], np.int64)
        if "grad" in arrays:
            unit = float(np.asarray(arrays["unit"])[0]) * 2.0 ** _exponent(arrays["ry"])
            self._gradient(step.label, "b" if kind.startswith("bias") else "w", np.asarray(arrays["grad"], np.float64) * unit)

    def _gradient(self, layer: str, what: str, scaled: npt.NDArray[np.float64]) -> None:
        graph = self.compiled.train.graph
        op = next(op for op in graph.ops if op.name == layer)
        self.gradients[layer, what] = scaled * read_layer(graph, op).x_scale if what == "w" else scaled


def _exponent(record: npt.NDArray[np.generic]) -> int:
    """The power of two of an error tensor, from its mg_exponent."""
    return int(np.clip(np.frombuffer(record.tobytes(), np.int8)[0], -16, 15))


def gradient_quality(compiled: Compiled, state: bytes, x: Samples, y: Truths, lr: float) -> tuple[Quality, ...]:
    """Train the reference from ``state`` on x (N, …) and y (N,), and compare each sample's gradients with float ones.

    The exponents in ``state`` should have settled: they move by one in 16 samples. Channels that are frozen, and samples whose float
    gradient is zero, do not count.
    """
    compiled = compiled.with_whole_steps()
    machine = Machine(compiled.plan)
    machine.state = state
    cosines: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for k in range(len(x)):
        before = machine.state
        capture = _Capture(compiled, {compiled.train.graph.inputs[0]: x[k].reshape(-1)})
        machine.observe = capture
        truth = int(y[k]) if y.ndim == 1 else np.asarray(y[k], np.int8)
        if isinstance(truth, int):
            machine.train(x[k], truth, lr, 0.0)
        else:
            machine.train(x[k], 0, lr, 0.0, target=truth)
        if capture.gradients:
            for key, pair in _compare(compiled, before, capture, truth).items():
                cosines.setdefault(key, []).append(pair)
    return tuple(_quality(layer, what, cosines.get((layer, what), [])) for layer, what in _trained(compiled))


def _trained(compiled: Compiled) -> list[tuple[str, str]]:
    found = []
    for t in compiled.program.trained:
        found += [(t.name, "w")] if t.weights is not None else []
        found += [(t.name, "b")] if t.bias is not None else []
    return found


def _loss_input(compiled: Compiled, capture: _Capture) -> npt.NDArray[np.float64]:
    """What the loss read, in real units."""
    graph, head = compiled.train.graph, compiled.train.head
    if head is not None and capture.logits is not None:
        layer = read_layer(graph, head)
        return np.asarray(capture.logits * layer.x_scale * layer.w_scale)
    quant = graph.tensors[graph.output].quant
    assert quant is not None
    return np.asarray(quant.scale[0] * (capture.activations[graph.output].astype(np.float64) - quant.zero_point))


def _compare(
    compiled: Compiled, state: bytes, capture: _Capture, truth: int | npt.NDArray[np.int8]
) -> dict[tuple[str, str], tuple[float, float]]:
    graph = apply_state(compiled.train.graph, compiled.program, compiled.layout, state)
    error = loss_error(compiled.train, _loss_input(compiled, capture), truth)
    reference = float_gradients(replace(compiled.train, graph=graph), capture.activations, error)
    pairs = {}
    for t in compiled.program.trained:
        alive = ~read_layer(graph, graph.layers[t.layer]).dead
        for what in ("w", "b"):
            if (t.name, what) not in reference:
                continue
            exact = reference[t.name, what]
            if what == "w":
                depthwise = read_layer(graph, graph.layers[t.layer]).depthwise
                exact = exact[: t.channels] if depthwise else exact[..., : t.channels]
            got = capture.gradients[t.name, what].reshape(exact.shape)
            keep = alive[: exact.shape[0]]
            pair = _cosine(got[keep].ravel(), exact[keep].ravel())
            if pair is not None:
                pairs[t.name, what] = pair
    return pairs


def _cosine(got: npt.NDArray[np.float64], exact: npt.NDArray[np.float64]) -> tuple[float, float] | None:
    """(cosine, relative error), None where the float gradient is zero."""
    norm = float(np.linalg.norm(exact))
    if norm == 0.0:
        return None
    size = float(np.linalg.norm(got))
    cosine = float(got @ exact) / (size * norm) if size else 0.0
    return cosine, float(np.linalg.norm(got - exact)) / norm


def _quality(layer: str, what: str, pairs: list[tuple[float, float]]) -> Quality:
    if not pairs:
        return Quality(layer, what, float("nan"), float("nan"), float("nan"), 0)
    cosine, error = np.array(pairs).T
    return Quality(layer, what, float(np.median(cosine)), float(np.percentile(cosine, 5)), float(np.median(error)), len(pairs))


def require_good(qualities: tuple[Quality, ...]) -> None:
    """Raise VerifyError that names the worst tensor where one is below the bounds."""
    bad = [q for q in qualities if not q.good]
    if bad:
        worst = min(bad, key=lambda q: q.p5 - q.relative_error)
        raise VerifyError(
            f"gradient of {worst.layer}.{worst.what}: cosine with the float gradient has median {worst.median:.4f} and 5th percentile "
            f"{worst.p5:.4f}, bounds {MIN_MEDIAN} and {MIN_P5}; relative error {worst.relative_error:.3f}, bound {MAX_RELATIVE_ERROR}",
            "train a few more samples first so that the exponents settle (--settle), or leave this layer out",
        )
