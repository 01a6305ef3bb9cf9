"""`mcugrad check` passes where all is well, and fails where it is not: a check that cannot fail proves nothing."""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from e2e.conftest import MODEL, QEMU, SCHEME, Motions
from helpers.cli import Done, mcugrad
from helpers.motions import CLASSES
from mcugrad.link import Loaded, Session
from mcugrad.lower import backward as lowering
from mcugrad.pipeline import compile_model
from mcugrad.plan import decode
from mcugrad.plan.codec import Region, offset_of, region_of

Check = Callable[..., Done]


@pytest.fixture
def check(motion_files: Motions) -> Check:
    def run(*more: str | int, board: str = "host") -> Done:
        common = ("--data", motion_files.train, "--board", board, "--classes", CLASSES, "--train", SCHEME, "--steps", 4, "--settle", 48)
        return mcugrad("check", MODEL, *common, *more)

    return run


@pytest.mark.parametrize("board", ["host", pytest.param(QEMU, marks=pytest.mark.qemu)])
def test_a_good_board_passes(check: Check, board: str) -> None:
    result = check("--json", board=board).result
    program = compile_model(MODEL, SCHEME, CLASSES).program
    trained = len(program.steps) - len(program.segments[1])
    assert result["bit_exact"] and result["samples"] == 8
    assert result["outputs_compared"] == 8 * trained
    for q in result["gradients"]:
        assert q["samples"] == 4 and q["median"] >= result["bounds"]["median"] and q["relative_error"] <= result["bounds"]["relative_error"]


@pytest.mark.parametrize("rounding", ["residual", "stochastic"])
def test_every_layer_passes(check: Check, rounding: str) -> None:
    result = check("--train", "all", "--rounding", rounding, "--json", "--settle", 150).result
    assert len(result["gradients"]) == 20


def test_people_see_the_verdict(check: Check) -> None:
    done = check()
    assert done.code == 0
    assert "host equals the reference bit for bit:" in done.out and "integer gradients against float ones" in done.out


# ---- a board that computes something else ----------------------------------------------------------------------------------


def steps_with(kind: str) -> list[tuple[int, str, dict[str, Any]]]:
    """Index, name and record of the plan's steps of a kind."""
    compiled = compile_model(MODEL, SCHEME, CLASSES)
    plan = decode(compiled.plan)
    return [(i, compiled.program.steps[i].name, dict(s.values)) for i, s in enumerate(plan.steps) if s.kind.name == kind]


@pytest.fixture
def other_weights(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """other_weights(ref): the board's copy of the plan, and only that, has another byte behind this reference into CONST."""

    def change(reference: int) -> None:
        assert region_of(reference) is Region.CONST
        load = Session.load_plan

        def load_changed(self: Session, plan: bytes) -> Loaded:
            changed = bytearray(plan)
            changed[decode(plan).header.const_offset + offset_of(reference)] ^= 0x10
            struct.pack_into("<I", changed, 16, zlib.crc32(changed[20:]))
            return load(self, bytes(changed))

        monkeypatch.setattr(Session, "load_plan", load_changed)

    return change


@pytest.mark.parametrize("kind, nth", [("conv2d_fwd_s8", 0), ("conv2d_fwd_s8", 2), ("dwconv2d_fwd_s8", 0), ("dwconv2d_fwd_s8", 1)])
def test_another_weight_is_named(check: Check, other_weights: Callable[[int], None], kind: str, nth: int) -> None:
    """The first step that differs is the one that reads the weight."""
    index, name, values = steps_with(kind)[nth]
    other_weights(values["wf"])
    done = check()
    step = rf"{index} \({re.escape(name)}\)"
    done.fails(7, rf"host and reference differ at training sample 0, first in step {step}: CRC \w{{8}} there, CRC \w{{8}} here")
    error = check("--json").object["error"]
    assert (error["code"], error["name"]) == (7, "verify") and name in error["text"]


def test_another_rate_is_found_in_the_update(check: Check, other_weights: Callable[[int], None]) -> None:
    index, name, values = steps_with("conv2d_upd_q16")[0]
    other_weights(values["rate"] + 2)
    check().fails(7, rf"step {index} \({name}\)")


@pytest.mark.qemu
def test_an_emulated_board_can_fail_too(check: Check, other_weights: Callable[[int], None]) -> None:
    _, name, values = steps_with("dwconv2d_fwd_s8")[1]
    other_weights(values["wf"])
    check(board=QEMU).fails(7, f"{QEMU} and reference differ", name)


def test_another_state_is_found(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    """A board whose STATE is not what its steps have written."""
    read = Session.read_state
    monkeypatch.setattr(Session, "read_state", lambda self: bytes([*read(self)[:-1], read(self)[-1] ^ 1]))
    check().fails(7, "training sample 0, first in STATE byte")


def test_train_fails_too_where_the_board_differs(other_weights: Callable[[int], None], motion_files: Motions, tmp_path: Path) -> None:
    other_weights(steps_with("conv2d_fwd_s8")[1][2]["wf"])
    files = ("--data", motion_files.train, "--out", tmp_path / "trained.tflite")
    done = mcugrad("train", MODEL, *files, "--board", "host", "--classes", CLASSES, "--train", SCHEME, "--epochs", 1, "--check", 2)
    done.fails(7, "host and reference differ at training sample 0")


# ---- board and reference agree, and both are wrong: only the gradients can tell ----------------------------------------------


def wrong_unit(patch: pytest.MonkeyPatch) -> None:
    """Errors behind a layer are twice as large as they should be: every cosine stays at 1."""
    fold = lowering.fold
    patch.setattr(lowering, "fold", lambda layer, channels: (fold(layer, channels)[0], 2 * fold(layer, channels)[1]))


def no_fold(patch: pytest.MonkeyPatch) -> None:
    """The scales of a layer's channels are left out."""
    fold = lowering.fold

    def equal(layer: Any, channels: int) -> tuple[Any, float]:
        m, unit = fold(layer, channels)
        return np.full_like(m, m.max() // 2), unit

    patch.setattr(lowering, "fold", equal)


def no_mask(patch: pytest.MonkeyPatch) -> None:
    """Errors pass where the activation was clamped."""
    patch.setattr(lowering, "_mask", lambda *_: {"has_mask": 0, "has_bits": 0, "lo": -129, "hi": 128})


def no_zero_point(patch: pytest.MonkeyPatch) -> None:
    """Weight gradients from raw int8 activations."""
    incoming = lowering._incoming
    patch.setattr(lowering, "_incoming", lambda low, number: incoming(low, number) | {"zx": 0})


@pytest.mark.parametrize("defect", [wrong_unit, no_fold, no_mask, no_zero_point])
def test_wrong_gradients_are_found(check: Check, monkeypatch: pytest.MonkeyPatch, defect: Callable[[pytest.MonkeyPatch], None]) -> None:
    defect(monkeypatch)
    done = check()
    done.fails(7, r"gradient of \w+\.[wb]: cosine .* bounds 0.99 and 0.98; relative error \d+\.\d+, bound 0.15", "--settle")
    assert "host equals the reference bit for bit" in done.out
