"""A checkpoint held its scheme with six digits, so a ratio could come back as another number of channels."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.conftest import MODEL
from helpers.cli import mcugrad
from helpers.motions import CLASSES, write_motions


@pytest.mark.parametrize("ratio", ["1/3", pytest.param("13/96"), pytest.param("0.13541666666")])
def test_export_finds_the_plan_again(tmp_path: Path, ratio: str) -> None:
    """13/96 of 48 input channels are 6.5, 0.135417 of them 6.500016: six channels the first time, seven the second."""
    out, again = tmp_path / "trained.tflite", tmp_path / "again.tflite"
    data = write_motions(tmp_path / "data.npz", 7, 1)
    scheme = ("--classes", CLASSES, "--train", f"head,weights:conv_4:{ratio}", "--epochs", 1)
    assert mcugrad("train", MODEL, "--data", data, "--board", "host", *scheme, "--out", out).code == 0
    done = mcugrad("export", MODEL, "--checkpoint", tmp_path / "trained.ckpt", "--out", again)
    assert done.code == 0, done.err
    assert again.read_bytes() == out.read_bytes()
