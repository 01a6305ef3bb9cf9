"""Faults of section E that no other file tests: figures of counters that stand still."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from helpers.cli import mcugrad
from helpers.modelled_board import ModelledBoard, build_modelled_board
from helpers.motions import CLASSES, write_motions
from mcugrad.link import Caps, Session, TickUnit
from mcugrad.link import session as session_module
from mcugrad.paths import root


def test_e96_a_board_whose_counter_stands_still_says_so(tmp_path: Path) -> None:
    """It was built to count cycles; its counter reads 0, as DWT's does in QEMU 7.2."""
    with ModelledBoard(build_modelled_board(tmp_path), tmp_path) as board:
        caps = Session(board, clock=board.clock).hello()
    assert caps.tick_unit is TickUnit.NONE and caps.units(0) is None


def test_e96_cycles_are_null_and_never_0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parse = session_module.parse_caps

    def without_counter(body: bytes) -> Caps:
        return replace(parse(body), tick_unit=TickUnit.NONE)

    monkeypatch.setattr(session_module, "parse_caps", without_counter)
    model, data = root() / "examples" / "watch" / "watch_base.tflite", write_motions(tmp_path / "x.npz", 14, 1)
    arguments = ("train", model, "--data", data, "--board", "host", "--classes", CLASSES, "--epochs", 1, "--out", tmp_path / "t.tflite")
    assert " cycles a step" not in mcugrad(*arguments).out
    assert mcugrad(*arguments, "--json").result["cycles_per_step"] is None
