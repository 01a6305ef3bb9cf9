"""What a training run leaves behind: the trained model, the checkpoint, the run log and the loss curve."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from mcugrad.errors import UsageError
from mcugrad.exporter import model_bytes
from mcugrad.lower.read_back import apply_state
from mcugrad.pipeline import Compiled
from mcugrad.plan import decode
from mcugrad.training.checkpoint import Checkpoint, write_atomic, write_checkpoint
from mcugrad.training.curve import write_curve
from mcugrad.training.run import Step


@dataclass(frozen=True, slots=True)
class Files:
    """Paths of a run's results: all beside the trained model, with its name."""

    model: Path
    checkpoint: Path
    log: Path
    curve: Path

    @classmethod
    def beside(cls, out: Path) -> Files:
        return cls(out, out.with_suffix(".ckpt"), out.with_suffix(".jsonl"), out.with_suffix(".svg"))

    def as_dict(self) -> dict[str, str]:
        return {name: str(path) for name, path in asdict(self).items()}

    def prepare(self) -> None:
        """Make the folder, and see that all four can be written: an hour of training later is too late. Raises UsageError."""
        folder = self.model.parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as e:
            raise UsageError(f"--out {self.model}: cannot write into {folder}: {e.strerror}", "choose another folder") from None
        for path in (self.model, self.checkpoint, self.log, self.curve):
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


def save(compiled: Compiled, state: bytes, seed: int, files: Files) -> None:
    """Write the trained .tflite and the checkpoint."""
    header = decode(compiled.plan).header
    trained = compiled.program.trained
    scheme = compiled.train.scheme.describe(compiled.train.graph)
    classes = compiled.program.classes if compiled.fresh_head else None
    write_atomic(files.model, model_bytes(apply_state(compiled.model, compiled.program, compiled.layout, state), files.model.suffix))
    assert compiled.train.loss is not None
    loss, ws = compiled.train.loss.value, trained[0].ws
    write_checkpoint(files.checkpoint, Checkpoint(header.plan_crc, header.model_hash, scheme, classes, loss, ws, seed, state))


def draw(steps: Sequence[Step], epochs: int, title: str, files: Files) -> None:
    """Draw the loss curve."""
    write_curve(files.curve, [s.loss for s in steps], epochs, title)
