"""RAM planned is RAM measured; exactly the need runs and one unit less is refused with numbers; what `plan` shows of it."""

from __future__ import annotations

import io
import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from rich.console import Console

from e2e.conftest import MODEL, SCHEME, Motions
from helpers.cli import mcugrad
from helpers.motions import CLASSES
from helpers.tiny_plan import patched
from mcugrad.board import Board, Kind, find_board, load_boards, open_board
from mcugrad.data import load
from mcugrad.errors import FitError
from mcugrad.link import Sample, Session, Stats
from mcugrad.memory.picture import ROWS, picture, text_lines
from mcugrad.paths import root
from mcugrad.pipeline import Compiled, compile_model
from mcugrad.plan import decode
from mcugrad.report import PlanReport, estimate, report, thin_stack

BOARDS = ["host", pytest.param("qemu-mps2-an386", marks=pytest.mark.qemu), pytest.param("qemu-mps2-an500", marks=pytest.mark.qemu)]
ARENA_BYTES_AT = 24
"""Offset of arena_bytes in a plan's header."""

UNIT = 16
"""Alignment of the regions."""


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    return compile_model(MODEL, SCHEME, CLASSES)


@dataclass(frozen=True, slots=True)
class Run:
    """A few training steps on a board. ``pool``: bytes that the board has for a plan; ``refusal``: of a plan of one unit more."""

    planned: PlanReport
    stats: Stats
    pool: int
    largest: Stats
    refusal: str


@pytest.fixture(scope="module", params=BOARDS)
def run(request: pytest.FixtureRequest, compiled: Compiled, motion_files: Motions) -> Run:
    data = load(motion_files.train, compiled.model)
    assert data.y is not None
    samples: list[Sample] = [(x.tobytes(), int(y), 0.01) for x, y in zip(data.x[:6], data.y[:6], strict=True)]
    with open_board(request.param) as (board, line):
        session = Session(line)
        pool = session.hello().pool_bytes // UNIT * UNIT
        stats = trained(session, compiled.plan, samples)
        largest = trained(session, of_memory(compiled.plan, pool), samples)
        with pytest.raises(FitError) as refused:
            session.load_plan(of_memory(compiled.plan, pool + UNIT))
        session.bye()
    return Run(report(compiled, board), stats, pool, largest, str(refused.value))


def trained(session: Session, plan: bytes, samples: list[Sample]) -> Stats:
    session.load_plan(plan)
    assert len(list(session.train_stream(iter(samples), 0.0))) == len(samples)
    return session.stats()


def of_memory(plan: bytes, nbytes: int) -> bytes:
    """The plan with a longer arena, so that it needs that many bytes in all."""
    head = decode(plan).header
    return patched(plan, ARENA_BYTES_AT, nbytes - head.state_bytes - head.io_bytes)


def test_measured_is_planned(run: Run) -> None:
    planned, stats = run.planned, run.stats
    assert stats.pool_used_bytes == planned.ram.arena + planned.ram.state + planned.ram.io == planned.constants["MCUGRAD_MEMORY_BYTES"]
    assert stats.stack_reserved_bytes == planned.ram.stack
    if planned.board != "host":
        assert stats.static_ram_bytes == planned.ram.runtime
        assert stats.stack_peak_bytes > 0
        assert planned.ram.total == stats.pool_used_bytes + stats.static_ram_bytes + stats.stack_reserved_bytes
    assert thin_stack(planned.board, stats.stack_peak_bytes, stats.stack_reserved_bytes) == ()


def test_the_arena_is_used_to_its_end(run: Run) -> None:
    """The bytes that steps have touched end within the last unit of what is reserved."""
    assert run.planned.ram.arena - UNIT < run.stats.arena_touched_bytes <= run.planned.ram.arena


def test_exactly_what_a_board_has_runs_and_one_unit_more_is_refused(run: Run) -> None:
    assert run.largest.pool_used_bytes == run.pool
    assert f"MG_ERR_NOMEM: the plan needs {run.pool + UNIT:,} bytes of RAM, the board has " in run.refusal


def test_a_stack_without_a_margin_is_noted() -> None:
    assert thin_stack("b", 800, 1000) == () and thin_stack("b", 0, 0) == ()
    (note,) = thin_stack("b", 801, 1000)
    assert "801" in note and "1,000" in note and "1,002" in note


# ---- --sram -----------------------------------------------------------------------------------------------------------


def test_exactly_the_need_trains_and_one_unit_less_names_what_fits(motion_files: Motions, tmp_path: Path) -> None:
    wanted = ("--board", "host", "--classes", CLASSES, "--train", SCHEME)
    need = mcugrad("plan", MODEL, *wanted, "--json").result["ram"]["total"]
    run = ("train", MODEL, "--data", motion_files.train, "--epochs", 1, "--out", tmp_path / "trained.tflite")
    result = mcugrad(*run, *wanted, "--sram", need, "--json").result
    assert result["plan"]["ram"]["total"] == need == result["plan"]["ram_limit"] == result["plan"]["sram"]
    less = mcugrad(*run, *wanted, "--sram", need - UNIT)
    less.fails(8, rf"plan needs {need:,} bytes of RAM \(arena [\d,]+, state [\d,]+, io [\d,]+, stack", rf"--sram gives {need - UNIT:,}")
    found = re.search(r"nearest is (--train \S+(?: --rounding stochastic)?) with ([\d,]+) bytes", less.err)
    assert found, less.err
    nearest = mcugrad("plan", MODEL, "--board", "host", "--classes", CLASSES, *found[1].split(), "--sram", need - UNIT, "--json").result
    assert f"{nearest['ram']['total']:,}" == found[2] and nearest["ram"]["total"] <= need - UNIT


def test_the_need_after_all_was_traded_runs_and_its_checkpoint_too(motion_files: Motions, tmp_path: Path) -> None:
    """Under the need of the plain plan the compiler computes twice what it would keep; the need that is then named is enough."""
    wanted = ("--board", "host", "--train", "all")
    plain = mcugrad("plan", MODEL, *wanted, "--json").result
    least = re.search(r"plan needs ([\d,]+) bytes", mcugrad("plan", MODEL, *wanted, "--sram", 30_000).err)
    assert least
    need = int(least[1].replace(",", ""))
    assert need < plain["ram"]["total"]
    out = tmp_path / "trained.tflite"
    run = ("--data", motion_files.train, "--epochs", 1, "--lr", 0.01, "--check", 4, "--out", out)
    result = mcugrad("train", MODEL, *wanted, *run, "--sram", need, "--json").result
    assert result["plan"]["ram"]["total"] == need and result["plan"]["macs_again"] > 0 and result["plan"]["recomputed"]
    mcugrad("plan", MODEL, *wanted, "--sram", need - UNIT).fails(8, f"plan needs {need:,} bytes", f"--sram gives {need - UNIT:,}")
    again = mcugrad(
        "eval", MODEL, "--data", motion_files.held_out, "--board", "host", "--checkpoint", out.with_suffix(".ckpt"), "--json"
    ).result
    alone = mcugrad("eval", out, "--data", motion_files.held_out, "--board", "host", "--json").result
    assert again["accuracy"] == alone["accuracy"]


@pytest.mark.parametrize("command", ["plan", "build", "check"])
def test_every_command_heeds_sram(command: str, motion_files: Motions, tmp_path: Path) -> None:
    more = {"check": ("--data", motion_files.train), "build": ("--out", tmp_path)}.get(command, ())
    done = mcugrad(command, MODEL, "--board", "host", "--sram", 22_000, "--train", "all", *more)
    done.fails(8, "--sram gives 22,000")


def test_more_ram_than_the_board_has() -> None:
    mcugrad("plan", MODEL, "--board", "host", "--sram", 2_000_000).fails(2, "--sram 2,000,000: board host has 1,048,576 bytes of RAM")


# ---- what plan shows --------------------------------------------------------------------------------------------------

NUMBER = (int, float)
SCHEMA: dict[str, Any] = {
    "board": str,
    "timing": str,
    "scheme": str,
    "classes": int,
    "ram": {"arena": int, "state": int, "io": int, "stack": int, "runtime": int, "total": int},
    "flash": {"plan": int, "const": int, "firmware": int, "total": int},
    "sram": (int, type(None)),
    "ram_limit": int,
    "flash_limit": int,
    "arena_lower_bound": int,
    "arena_ratio": NUMBER,
    "peak_step": str,
    "peak": {"step": int, "name": str, "segment": str, "held": [{"name": str, "bytes": int}]},
    "saved": {"masks": int, "slices": int, "whole": int},
    "stripes": [{"layers": list, "stripes": int, "rows": int, "kept_bytes": int, "whole_bytes": int, "again_macs": int}],
    "fused": [{"layers": list, "scratch_bytes": int, "whole_bytes": int}],
    "recomputed": list,
    "macs": {"forward": int, "backward": int},
    "macs_again": int,
    "steps": int,
    "trained_weights": int,
    "trained_biases": int,
    "constants": dict,
    "notes": list,
    "proof": (dict, type(None)),
    "plan": (str, type(None)),
    "picture": (str, type(None)),
}


def check_schema(value: Any, schema: Any, where: str) -> None:
    if isinstance(schema, dict):
        assert isinstance(value, dict) and set(value) == set(schema), f"{where}: {sorted(set(value) ^ set(schema))}"
        for key, part in schema.items():
            check_schema(value[key], part, f"{where}.{key}")
    elif isinstance(schema, list):
        assert isinstance(value, list)
        for k, item in enumerate(value):
            check_schema(item, schema[0], f"{where}[{k}]")
    else:
        assert isinstance(value, schema), f"{where} is {value!r}"


def test_the_json_of_plan(tmp_path: Path) -> None:
    files = ("--picture", tmp_path / "arena.svg", "--out", tmp_path / "plan.bin")
    result = mcugrad("plan", MODEL, "--board", "host", "--train", SCHEME, "--check", *files, "--json").result
    check_schema(result, SCHEMA, "result")
    assert result["timing"] == "emulated" and result["arena_ratio"] == round(result["ram"]["arena"] / result["arena_lower_bound"], 4)
    assert result["peak"]["name"] == result["peak_step"] and result["peak"]["segment"] in ("forward", "eval", "loss", "backward", "commit")
    assert result["proof"]["steps"] == result["steps"] == sum(decode((tmp_path / "plan.bin").read_bytes()).segments)
    assert result["constants"]["MCUGRAD_ARENA_BYTES"] == result["ram"]["arena"]


def test_plan_says_the_bytes_the_macro_and_the_step_that_needs_most() -> None:
    done = mcugrad("plan", MODEL, "--board", "host", "--train", SCHEME, "--check")
    result = mcugrad("plan", MODEL, "--board", "host", "--train", SCHEME, "--json").result
    assert f"MCUGRAD_MEMORY_BYTES {result['constants']['MCUGRAD_MEMORY_BYTES']}" in done.out
    assert f"{result['peak']['segment']} {result['peak_step']}: {result['peak']['held'][0]['name']}" in done.out
    assert f"{result['ram']['total']:,}" in done.out and "addresses proven from the plan's bytes" in done.out


def test_no_document_says_to_try_sizes() -> None:
    for name in ("README.md", "SPEC.md", "DESIGN.md", "firmware/include/mcugrad.h"):
        text = (root() / name).read_text(encoding="utf-8").lower()
        assert not re.search(r"trial and error|try (other |different |larger )?(values|sizes)|until it (fits|works)", text), name


@pytest.mark.parametrize("name", ["arena.svg", "arena.html"])
def test_a_picture_in_a_file(name: str, tmp_path: Path) -> None:
    result = mcugrad("plan", MODEL, "--board", "host", "--picture", tmp_path / name, "--json").result
    text = (tmp_path / name).read_text(encoding="utf-8")
    svg = text[text.index("<svg") : text.index("</svg>") + 6]
    assert ET.fromstring(svg).tag.endswith("svg") and "<script" not in text and result["picture"] == str(tmp_path / name)
    assert f"arena {result['ram']['arena']:,} bytes" in svg


def drawing_of(out: str) -> list[str]:
    """The lines of the drawing, headline to legend."""
    lines = out.splitlines()
    start = next(k for k, line in enumerate(lines) if line.startswith("arena ") and "lower bound" in line)
    return lines[start : start + ROWS + 4]


def test_a_picture_in_the_terminal(compiled: Compiled, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = text_lines(picture(compiled.program, compiled.layout, compiled.lowered), 80)
    arguments = ("plan", MODEL, "--board", "host", "--train", SCHEME, "--classes", CLASSES, "--picture", "-")
    plain = mcugrad(*arguments)
    assert plain.code == 0 and "\x1b" not in plain.out
    assert drawing_of(plain.out) == expected[: ROWS + 4]
    assert all(line.isascii() for line in drawing_of(plain.out))
    monkeypatch.setenv("NO_COLOR", "1")
    assert mcugrad(*arguments).out == plain.out


def test_colors_only_where_they_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    def said() -> str:
        file = io.StringIO()
        console = Console(file=file, force_terminal=True, color_system="standard", width=80, highlight=False, markup=False)
        with mock.patch("mcugrad.cli.common.Console", lambda **_: console):
            assert mcugrad("plan", MODEL, "--board", "host", "--picture", "-").code == 0
        return file.getvalue()

    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[" in "\n".join(drawing_of(said()))
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in "\n".join(drawing_of(said()))


def test_pictures_that_cannot_be_meant(tmp_path: Path) -> None:
    mcugrad("plan", MODEL, "--board", "host", "--picture", tmp_path / "arena.png").fails(2, r"a picture is a \.svg or \.html file")
    done = mcugrad("plan", MODEL, "--board", "host", "--picture", "-", "--json")
    assert done.code == 2 and "prints one object" in json.loads(done.out)["error"]["text"]


# ---- --estimate -------------------------------------------------------------------------------------------------------


@pytest.fixture
def no_builds() -> Iterator[None]:
    with mock.patch.object(Board, "build", side_effect=AssertionError("--estimate builds no firmware")):
        yield


@pytest.mark.usefixtures("no_builds")
def test_an_estimate_for_every_board_builds_nothing() -> None:
    result = mcugrad("plan", MODEL, "--train", SCHEME, "--estimate", "--board", "all", "--json").result
    assert [e["board"] for e in result["estimates"]] == [name for name, board in load_boards().items() if board.kind is not Kind.RENODE]
    assert all(e["fits"] and e["ram"] <= e["ram_limit"] and e["flash"] <= e["flash_limit"] for e in result["estimates"])
    (small,) = mcugrad("plan", MODEL, "--estimate", "--board", "qemu-mps2-an386", "--sram", 9_000, "--json").result["estimates"]
    assert not small["fits"] and small["ram"] > small["ram_limit"] == 9_000
    assert "does not fit" in mcugrad("plan", MODEL, "--estimate", "--board", "qemu-mps2-an386", "--sram", 9_000).out


def test_an_estimate_is_at_least_the_need_and_near_it(run: Run, compiled: Compiled) -> None:
    if run.planned.board == "host":
        pytest.skip("a host process has a runtime of its own")
    guess = estimate(compiled, find_board(run.planned.board))
    assert run.planned.ram.total <= guess.ram <= run.planned.ram.total + 500
    assert run.planned.flash.total <= guess.flash
