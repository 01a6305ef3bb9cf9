"""One training run a board, shared by all tests that only look at what it left."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from helpers.cli import mcugrad
from helpers.motions import CLASSES, write_motions
from helpers.watch import MODEL

SCHEME = "head,bias:4,weights:conv_4"
QEMU = "qemu-mps2-an386"
EPOCHS, LR, SEED = 2, 0.02, 5
TRAIN_WINDOWS, HELD_OUT_WINDOWS = 56, 35


@dataclass(frozen=True, slots=True)
class Trained:
    """A finished `mcugrad train --json`: its result and its files."""

    result: dict[str, Any]

    def path(self, name: str) -> Path:
        return Path(self.result["paths"][name])

    def bytes(self, name: str) -> bytes:
        return self.path(name).read_bytes()

    def events(self, kind: str) -> list[dict[str, Any]]:
        """The events of one kind in the run log, in order."""
        lines = self.path("log").read_text(encoding="utf-8").splitlines()
        return [event for event in map(json.loads, lines) if event["event"] == kind]


@dataclass(frozen=True, slots=True)
class Motions:
    """Two .npz files: windows to learn, and others."""

    train: Path
    held_out: Path


@pytest.fixture(scope="session")
def motion_files(tmp_path_factory: pytest.TempPathFactory) -> Motions:
    folder = tmp_path_factory.mktemp("motions")
    return Motions(
        write_motions(folder / "train.npz", TRAIN_WINDOWS, 1),
        write_motions(folder / "held_out.npz", HELD_OUT_WINDOWS, 2),
    )


Train = Callable[..., Trained]


@pytest.fixture(scope="session")
def train(motion_files: Motions, tmp_path_factory: pytest.TempPathFactory) -> Train:
    """train(board, rounding=…, scheme=…, epochs=…, run=…, batch=…): the same arguments give the same run, which happens once."""

    @functools.cache
    def once(board: str, rounding: str = "residual", scheme: str = SCHEME, epochs: int = EPOCHS, run: int = 1, batch: int = 1) -> Trained:
        out = tmp_path_factory.mktemp(f"run{run}") / "trained.tflite"
        done = mcugrad(
            *("train", MODEL, "--data", motion_files.train, "--eval", motion_files.held_out, "--board", board, "--classes", CLASSES),
            *(
                "--train",
                scheme,
                "--rounding",
                rounding,
                "--batch",
                batch,
                "--epochs",
                epochs,
                "--lr",
                LR,
                "--seed",
                SEED,
                "--out",
                out,
                "--json",
            ),
        )
        return Trained(done.result)

    return once
