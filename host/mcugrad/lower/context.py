"""What the parts of lowering share: the values made so far, and records filled by name from the facts of an op."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from mcugrad.autodiff.differentiate import TrainGraph
from mcugrad.errors import UsageError
from mcugrad.graph import Activation, Tensor
from mcugrad.lower import quant
from mcugrad.lower.program import Draft, TrainedLayer, Value
from mcugrad.lower.saved import Saved
from mcugrad.plan import Region, opsdef
from mcugrad.plan.opsdef import TYPES

Facts = dict[str, float | Value | None]
"""Fields of a record by their name in ops.def."""

WORD = 4
"""Alignment of every value: kernels may load int8 by the word."""


@dataclass(frozen=True, slots=True)
class Options:
    """How weights are trained: ``ws`` = 2 for Q8.8 with rounding, 1 for int8 with stochastic rounding; ``seed`` of the generator.

    ``batch``: samples of a micro-batch, 1 updates with every sample. Raises UsageError where it is below 1 or the weights cannot sum up.
    """

    ws: int = 2
    seed: int = 1
    batch: int = 1

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise UsageError(f"--batch {self.batch}: at least 1", "1 updates the weights with every sample")
        if self.batch > 1 and self.ws == 1:
            raise UsageError(
                f"--batch {self.batch} --rounding stochastic: an int8 weight has no low byte to sum up a batch in",
                "use --rounding residual, or --batch 1",
            )


@dataclass(slots=True)
class Lowering:
    """The state of one lowering. ``tensors``: graph tensor -> value; ``errors``: number -> (error tensor, exponent).

    ``masks`` and ``slices``: graph tensor -> what is kept of it for the backward pass.
    """

    train: TrainGraph
    options: Options
    exponents: Mapping[int, int]
    saved: Saved
    tensors: dict[int, Value] = field(default_factory=dict)
    errors: dict[int, tuple[Value, Value]] = field(default_factory=dict)
    masks: dict[int, Value] = field(default_factory=dict)
    slices: dict[int, Value] = field(default_factory=dict)
    layers: dict[str, Facts] = field(default_factory=dict)
    trained: list[TrainedLayer] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def emit(self, kind_name: str, label: str, facts: Mapping[str, float | Value | None]) -> Draft:
        """Fill a record of ``kind_name``. A reference whose count is 0 for these scalars is unused."""
        kind = opsdef.kinds()[kind_name]
        numbers: dict[str, float] = {}
        for s in kind.scalars:
            fact = facts[s.name]
            assert isinstance(fact, int | float), f"{kind_name} {label}: {s.name} is no number"
            numbers[s.name] = fact
        refs: dict[str, Value | None] = {}
        for name, nbytes in kind.nbytes(numbers).items():
            value = facts.get(name) if nbytes else None
            if nbytes:
                assert isinstance(value, Value) and value.nbytes == nbytes, f"{kind_name} {label}: {name} has not {nbytes} bytes"
            refs[name] = value if isinstance(value, Value) else None
        return Draft(kind, label, numbers, refs)

    def tensor(self, index: int) -> Value:
        """The value of a graph tensor: in ARENA, or in CONST where the model gives its content."""
        if index not in self.tensors:
            tensor = self.train.graph.tensors[index]
            if tensor.data is not None:
                self.tensors[index] = const(tensor.name, "int8_t", np.asarray(tensor.data, np.int8).tobytes())
            else:
                self.tensors[index] = make_value(tensor.name, Region.ARENA, "int8_t", tensor.size)
        return self.tensors[index]

    def error(self, number: int, tensor: Tensor) -> tuple[Value, Value]:
        """The int8 error tensor of that number and its exponent."""
        if number not in self.errors:
            r = self.exponents[number] & 0xFF
            exponent = make_value(f"exponent of d({tensor.name})", Region.STATE, "mg_exponent", data=bytes((r, r, 0, 0)))
            self.errors[number] = make_value(f"d({tensor.name})", Region.ARENA, "int8_t", tensor.size), exponent
        return self.errors[number]


def make_value(name: str, region: Region, ctype: str, count: int = 1, data: bytes | None = None) -> Value:
    """``count`` elements of an ops.def type."""
    size, align = TYPES[ctype]
    return Value(name, region, size * count, max(align, WORD), data)


def const(name: str, ctype: str, data: bytes) -> Value:
    """A constant with this content."""
    return make_value(name, Region.CONST, ctype, len(data) // TYPES[ctype][0], data)


def zero_point(tensor: Tensor) -> int:
    assert tensor.quant is not None
    return tensor.quant.zero_point


def scale(tensor: Tensor) -> float:
    assert tensor.quant is not None
    return tensor.quant.scale[0]


def map_size(tensor: Tensor) -> tuple[int, int, int]:
    """(H, W, C) of an activation (1, H, W, C)."""
    h, w, c = tensor.shape[-3:]
    return h, w, c


def clamp(tensor: Tensor, activation: Activation) -> Facts:
    """The fields lo and hi."""
    lo, hi = quant.activation_range(activation, scale(tensor), zero_point(tensor))
    return {"lo": lo, "hi": hi}
