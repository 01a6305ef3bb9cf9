"""What a training run leaves behind: the trained model, the checkpoint, the run log and the loss curve."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from mcugrad.errors import UsageError
from mcugrad.exporter import model_bytes
from mcugrad.graph.permute import Channels
from mcugrad.lower import Options
from mcugrad.lower.read_back import unchanged_weights
from mcugrad.pipeline import Compiled
from mcugrad.plan import decode
from mcugrad.training.checkpoint import Checkpoint, write_atomic, write_checkpoint
from mcugrad.training.curve import write_curve
from mcugrad.training.run import Step

MAX_UNCHANGED = 0.99
"""A run that leaves a larger share of the trained weights as they were has rounded its updates to zero."""


@dataclass(frozen=True, slots=True)
class Unchanged:
    """The share of trained weights that a run left as they were: of each layer, and of all. ``total`` is None where none are trained."""

    layers: Mapping[str, float]
    total: float | None

    def as_dict(self) -> dict[str, Any]:
        return {"layers": dict(self.layers), "total": self.total}

    def notes(self, steps: Sequence[Step], ws: int) -> list[str]:
        """A note where nearly no weight has moved although samples were trained. ``ws``: bytes of a trained weight."""
        if self.total is None or self.total <= MAX_UNCHANGED or all(s.skipped or s.lr == 0 for s in steps):
            return []
        other = " or --rounding residual" if ws == 1 else ""
        return [f"{100 * self.total:.3g} % of the trained weights did not move, their updates were rounded to 0: use a larger --lr{other}"]


def unchanged(compiled: Compiled, state: bytes) -> Unchanged:
    """Compare the trained weights of ``state`` with those that the run began with."""
    before = decode(compiled.plan).init
    counts = unchanged_weights(compiled.train.graph, compiled.program, compiled.layout, before, state)
    same, size = (sum(c[k] for c in counts.values()) for k in (0, 1))
    return Unchanged({name: a / n for name, (a, n) in counts.items() if n}, same / size if size else None)


@dataclass(frozen=True, slots=True)
class Files:
    """Paths of a run's results: all beside the trained model, with its name. ``progress`` is there while a run can be resumed."""

    model: Path
    checkpoint: Path
    log: Path
    curve: Path
    progress: Path

    @classmethod
    def beside(cls, out: Path) -> Files:
        return cls(out, out.with_suffix(".ckpt"), *(out.with_suffix(s) for s in (".jsonl", ".svg", ".progress")))

    def as_dict(self) -> dict[str, str]:
        return {name: str(path) for name, path in asdict(self).items() if name != "progress"}

    def prepare(self) -> None:
        """Make the folder, and see that all can be written: an hour of training later is too late. Raises UsageError."""
        folder = self.model.parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as e:
            raise UsageError(f"--out {self.model}: cannot write into {folder}: {e.strerror}", "choose another folder") from None
        for path in (self.model, self.checkpoint, self.log, self.curve, self.progress):
            if path.is_dir():
                raise UsageError(f"--out {self.model}: {path} is a folder", "choose another name")


class RunLog:
    """A JSON-lines file: one object an event, flushed as it happens."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def event(self, kind: str, **values: Any) -> None:
        self._file.write(json.dumps({"event": kind, **values}) + "\n")
        self._file.flush()

    def step(self, step: Step) -> None:
        self.event("step", **asdict(step))


def save(compiled: Compiled, state: bytes, options: Options, files: Files) -> None:
    """Write the trained model and the checkpoint. ``options``: those that the plan was lowered with."""
    header = decode(compiled.plan).header
    scheme = compiled.train.scheme.describe(compiled.train.graph)
    classes = compiled.program.classes if compiled.fresh_head else None
    write_atomic(files.model, model_bytes(compiled.trained_model(state), files.model.suffix))
    assert compiled.train.loss is not None
    loss, ws, seed = compiled.train.loss.value, options.ws, options.seed
    channels = Channels.NORM if compiled.order else Channels.FIRST  # the same plan where nothing was reordered
    arguments = scheme, classes, loss, ws, seed, state, channels.value, options.batch, compiled.ram
    write_checkpoint(files.checkpoint, Checkpoint(header.plan_crc, header.model_hash, *arguments))


def draw(steps: Sequence[Step], epochs: int, title: str, files: Files) -> None:
    """Draw the loss curve."""
    write_curve(files.curve, [s.loss for s in steps], epochs, title)
