"""Board against reference: the same plan, the same samples, every step's output and STATE byte for byte."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from mcugrad.data import DataSet
from mcugrad.errors import VerifyError
from mcugrad.link import Session, TrainReply
from mcugrad.link.protocol import Region as Readable
from mcugrad.lower.program import Value
from mcugrad.memory import Layout
from mcugrad.pipeline import Compiled
from mcugrad.plan import Region
from mcugrad.ref.run import Machine
from mcugrad.training.run import label_of, sample_of

COPY = "copy_s8"


@dataclass(frozen=True, slots=True)
class Difference:
    """The first thing that differs: at training sample ``sample``, ``what`` names a step or a value in STATE."""

    sample: int
    what: str
    board: str
    reference: str


@dataclass(frozen=True, slots=True)
class Agreement:
    """``outputs`` step outputs and ``samples`` STATEs were compared. ``difference`` is None where all were equal."""

    samples: int
    outputs: int
    difference: Difference | None


@dataclass(frozen=True, slots=True)
class Look:
    """What a board has left of a run: the CRC-32 of every step's outputs (none where it keeps no trace), and STATE.

    ``outputs`` of the steps were compared with the reference's. ``difference`` is None where all of them and STATE were equal.
    """

    trace: tuple[int, ...]
    state: bytes
    outputs: int
    difference: Difference | None


def compare(
    session: Session, compiled: Compiled, state: bytes, data: DataSet, order: Sequence[int], lr: float, skip: float, batch: int = 1
) -> Agreement:
    """Train board and reference from ``state`` on the samples of ``order``, and compare after every sample.

    With ``batch`` > 1 both commit after so many samples and after the last, and are compared then too. The board's STATE is then that of
    these N samples. Raises FitError where the board has no room for the trace.
    """
    machine = Machine(compiled.plan)
    machine.state = state
    machine.tracing = True
    session.write_state(state)
    session.trace_on()
    outputs = 0
    try:
        for k, i in enumerate(order):
            _, look = train_both(session, compiled, machine, data, i, lr, skip, k)
            outputs += look.outputs
            if look.difference is None and batch > 1 and ((k + 1) % batch == 0 or k + 1 == len(order)):
                machine.commit()
                session.commit()
                look = _look(session, compiled, machine, _committed_steps(compiled), k)
                outputs += look.outputs
            if look.difference:
                return Agreement(k + 1, outputs, look.difference)
    finally:
        session.trace_off()
    return Agreement(len(order), outputs, None)


def train_both(
    session: Session, compiled: Compiled, machine: Machine, data: DataSet, i: int, lr: float, skip: float, k: int
) -> tuple[TrainReply, Look]:
    """One training step on sample ``i`` of ``data``, on the board and in the reference, as the ``k``-th of both.

    With ``machine.tracing`` the board must be tracing too; without it only loss and STATE are compared.
    """
    label, target = label_of(data, i), None if data.target is None else data.target[i]
    reference = machine.train(data.x[i], label, lr, skip, target)
    session.sample(sample_of(data, i))
    reply = session.train(label, lr, skip)
    look = _look(session, compiled, machine, _trained_steps(compiled, reference.skipped), k)
    if look.difference is None and np.float32(reply.loss) != np.float32(reference.loss):
        look = replace(look, difference=Difference(k, "loss", repr(reply.loss), repr(reference.loss)))
    return reply, look


def _look(session: Session, compiled: Compiled, machine: Machine, executed: Sequence[int], sample: int) -> Look:
    """What both have left of running the same steps."""
    found, trace, whole = None, (), []
    if machine.tracing:
        board = np.frombuffer(session.read(Readable.TRACE, 0, 4 * len(compiled.program.steps)), "<u4")
        whole = whole_outputs(compiled, executed)
        found = _first_step(compiled, sample, board, dict(zip(executed, machine.trace, strict=True)), whole)
        trace = tuple(board.tolist())
    state = session.read_state()
    return Look(trace, state, len(whole), found or _first_state(compiled, sample, state, machine.state))


def _trained_steps(compiled: Compiled, skipped: bool) -> list[int]:
    """Indices of the steps that a training step runs."""
    forward, evaluate, loss, backward, _ = (len(s) for s in compiled.program.segments)
    first_loss = forward + evaluate
    return [*range(forward), *range(first_loss, first_loss + loss + (0 if skipped else backward))]


def _committed_steps(compiled: Compiled) -> list[int]:
    """Indices of the steps that a commit runs: the last ones."""
    steps = len(compiled.program.steps)
    return list(range(steps - len(compiled.program.segments[-1]), steps))


def whole_outputs(compiled: Compiled, executed: Sequence[int]) -> list[int]:
    """Those of the steps behind which their output is whole.

    A concat is one copy for each part: before the last, the rest of its output is what was in ARENA, which differs from machine to machine.
    """
    found: list[int] = []
    complete: set[Value] = set()
    for index in reversed(executed):
        step = compiled.program.steps[index]
        written = [v for ref in step.kind.refs if ref.writes and (v := step.refs[ref.name]) is not None]
        if step.kind.name != COPY or not complete.issuperset(written):
            found.append(index)
        complete.update(written)
    return found[::-1]


def _first_step(
    compiled: Compiled, sample: int, board: npt.NDArray[np.uint32], reference: Mapping[int, int], steps: Sequence[int]
) -> Difference | None:
    for index in steps:
        ours, theirs = int(board[index]), reference[index]
        if ours != theirs:
            return Difference(sample, f"step {index} ({compiled.program.steps[index].name})", f"CRC {ours:08x}", f"CRC {theirs:08x}")
    return None


def _first_state(compiled: Compiled, sample: int, board: bytes, reference: bytes) -> Difference | None:
    if board == reference:
        return None
    at = next(i for i, (a, b) in enumerate(zip(board, reference, strict=True)) if a != b)
    return Difference(sample, f"STATE byte {at} ({_owner(compiled.layout, at)})", f"{board[at]:#04x}", f"{reference[at]:#04x}")


def _owner(layout: Layout, at: int) -> str:
    for value, offset in layout.offsets.items():
        if value.region is Region.STATE and offset <= at < offset + value.nbytes:
            return value.name
    return "padding"


def require_equal(agreement: Agreement, board: str) -> None:
    """Raise VerifyError that names the first difference."""
    d = agreement.difference
    if d is not None:
        raise VerifyError(
            f"{board} and reference differ at training sample {d.sample}, first in {d.what}: {d.board} there, {d.reference} here",
            "firmware and host are of different versions, or a kernel is wrong: build again, then report it with this line",
        )
