"""The executor: four regions, and the plan's steps run in order."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mcugrad.errors import DataError, PlanError
from mcugrad.plan.codec import DecodedPlan, Region, decode, offset_of, region_of
from mcugrad.plan.opsdef import StepKind
from mcugrad.ref.fixed import Array
from mcugrad.ref.memory import Arrays, Memory, Scalars, bind, view
from mcugrad.ref.table import KERNELS

_FLOAT_MAX = float(np.finfo(np.float32).max)

Sample = npt.NDArray[np.int8]
Observer = Callable[[int, str, Mapping[str, Array]], None]
"""Called after each step with its index in the plan, its kind and its arrays; an update step adds its int32 gradient as ``grad``.

Activations are views of memory that later steps use again: copy what you keep.
"""


@dataclass(frozen=True, slots=True)
class Result:
    """What the loss said of one sample. ``peak`` is the largest |dL/dlogit|; ``skipped``: no backward pass was run."""

    loss: float
    peak: float
    argmax: int
    skipped: bool


@dataclass(frozen=True, slots=True)
class _Step:
    index: int
    kind: StepKind
    scalars: Scalars
    arrays: Arrays


def checked_sample(plan: DecodedPlan, sample: Sample) -> Sample:
    """``sample`` flat. Raises DataError where its dtype or its size is not the plan's."""
    if sample.dtype != np.int8 or sample.size != plan.header.sample_bytes:
        raise DataError(
            f"a sample is {sample.size} values of {sample.dtype}, the plan takes {plan.header.sample_bytes} of int8",
            "quantize it with the scale of the model input",
        )
    return sample.reshape(-1)


def checked_target(plan: DecodedPlan, target: Sample | None) -> Sample:
    """``target`` flat, empty where the plan takes none. Raises DataError where it is missing or unexpected, or not of the plan's size."""
    size = plan.header.target_bytes
    quantize = "quantize it with the scale of the model output"
    if target is None:
        if size:
            raise DataError(f"the loss of this plan needs a target of {size} int8 values, and there is none", quantize)
        return np.zeros(0, np.int8)
    if size == 0:
        raise DataError("the loss of this plan takes a label and no target", "leave the targets out")
    if target.dtype != np.int8 or target.size != size:
        raise DataError(f"a target is {target.size} values of {target.dtype}, the plan takes {size} of int8", quantize)
    return target.reshape(-1)


def checked_label(plan: DecodedPlan, label: int, lr: float, skip: float) -> None:
    """Raises PlanError where the plan cannot train, DataError where label, lr or skip are out of range."""
    if plan.header.classes == 0:
        raise PlanError("the plan cannot train: it has no loss", "make a plan with a scheme")
    if not 0 <= label < plan.header.classes:
        raise DataError(f"label {label} is not in 0 … {plan.header.classes - 1}", "check the labels or the number of classes")
    for name, value in (("lr", lr), ("skip", skip)):
        if not 0 <= value <= _FLOAT_MAX:
            raise DataError(f"{name} = {value} is not a finite float32 >= 0", f"choose another {name}")


class Machine:
    """The NumPy executor of one plan. The C library, wrapped by mcugrad.native.NativeMachine, has the same interface.

    ``tracing`` fills ``trace`` with the CRC-32 of what each step of the last predict, train or commit wrote: all OUT and UPD references
    in the order of the record. ``observe`` is called after every step.
    """

    def __init__(self, plan: bytes) -> None:
        self.plan = decode(plan)
        head = self.plan.header
        const = np.frombuffer(self.plan.const, dtype=np.uint8)
        self.regions: tuple[Memory, ...] = (
            np.zeros(head.arena_bytes, np.uint8),
            const,
            np.frombuffer(self.plan.init, dtype=np.uint8).copy(),
            np.zeros(head.io_bytes, np.uint8),
        )
        self.tracing = False
        self.trace: list[int] = []
        self.observe: Observer | None = None
        self._steps = tuple(_Step(i, s.kind, *bind(s.kind, s.values, self.regions)) for i, s in enumerate(self.plan.steps))
        steps = iter(self._steps)
        segments = (tuple(itertools.islice(steps, n)) for n in self.plan.segments)
        self._forward, self._eval, self._loss, self._backward, self._commit = segments

    @property
    def state(self) -> bytes:
        """The bytes of STATE: trained weights, residuals, exponents, random state."""
        return self.regions[Region.STATE].tobytes()

    @state.setter
    def state(self, value: bytes) -> None:
        state = self.regions[Region.STATE]
        if len(value) != len(state):
            raise PlanError(f"STATE has {len(state)} bytes, not {len(value)}", "use a checkpoint of the same plan")
        state[:] = np.frombuffer(value, dtype=np.uint8)

    def reset(self) -> None:
        """Back to the plan's initial STATE; ARENA and IO zero."""
        self.state = self.plan.init
        for region in (Region.ARENA, Region.IO):
            self.regions[region][:] = 0

    def predict(self, sample: Sample) -> Sample:
        """int8 input of the model, any shape -> its int8 output, flat. Several inputs are given as the plan's sample has them: one behind
        the other, each at a multiple of 4."""
        self._load(sample)
        self.trace = []
        self._run(self._forward)
        self._run(self._eval)
        return self._at(self.plan.header.output, "int8_t", self.plan.header.output_bytes).copy()

    def train(self, sample: Sample, label: int, lr: float, skip: float = 0.1, target: Sample | None = None) -> Result:
        """One training step. A sample whose largest |dL/dlogit| is below ``skip`` changes nothing.

        ``target`` is what a regression loss compares the output with, int8; its label is 0.
        """
        checked_label(self.plan, label, lr, skip)
        wanted = checked_target(self.plan, target)
        self._load(sample)
        if wanted.size:
            self._at(self.plan.header.target, "int8_t", wanted.size)[:] = wanted
        self._at(self.plan.header.args, "mg_args", 1)[0] = (lr, skip, label, 0)
        self.trace = []
        self._run(self._forward)
        self._run(self._loss)
        loss, peak, argmax, skipped = self._at(self.plan.header.result, "mg_result", 1)[0].tolist()
        if not skipped:
            self._run(self._backward)
        return Result(loss, peak, argmax, bool(skipped))

    def commit(self) -> None:
        """The end of a micro-batch: the summed steps go into the weights. A plan that updates with every sample has nothing to do."""
        self.trace = []
        self._run(self._commit)

    def _at(self, reference: int, ctype: str, count: int) -> Array:
        return view(self.regions[region_of(reference)], offset_of(reference), ctype, count)

    def _load(self, sample: Sample) -> None:
        flat = checked_sample(self.plan, sample)
        self._at(self.plan.header.sample, "int8_t", flat.size)[:] = flat

    def _run(self, steps: tuple[_Step, ...]) -> None:
        for step in steps:
            gradient = KERNELS[step.kind.name](step.scalars, step.arrays)
            if self.tracing:
                crc = 0
                for ref in step.kind.refs:
                    if ref.writes:
                        crc = zlib.crc32(step.arrays[ref.name].tobytes(), crc)
                self.trace.append(crc)
            if self.observe is not None:
                extra = {} if gradient is None else {"grad": gradient}
                self.observe(step.index, step.kind.name, {**step.arrays, **extra})
