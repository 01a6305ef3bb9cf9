"""--board renode-…: the whole way of a session, with a stand-in that obeys our scripts and runs the image in QEMU."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.cli import mcugrad
from helpers.motions import CLASSES, write_motions
from helpers.watch import MODEL, SKIP, learned
from mcugrad.board import find_board, load_boards, open_board, renode
from mcugrad.errors import UnavailableError
from mcugrad.link import Session
from mcugrad.link.protocol import TickUnit
from renode.conftest import FakeRenode

pytestmark = pytest.mark.qemu

BOARD = "renode-mps2-an386"


def alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def ends(group: int, seconds: float = 5.0) -> bool:
    end = time.monotonic() + seconds
    while alive(group) and time.monotonic() < end:
        time.sleep(0.05)
    return not alive(group)


def test_it_trains_to_the_reference_s_state(fake_renode: FakeRenode) -> None:
    compiled, samples, state = learned()
    with open_board(BOARD) as (board, line):
        session = Session(line)
        caps = session.hello()
        assert caps.board == board.image == "qemu-mps2-an386"
        session.load_plan(compiled.plan)
        list(session.train_stream(samples, SKIP))
        assert session.read_state() == state
        group = os.getpgid(fake_renode.started()["pid"])
    assert ends(group)
    assert fake_renode.kept() == []


def test_no_port_is_opened(fake_renode: FakeRenode) -> None:
    with open_board(BOARD):
        arguments = fake_renode.started()["arguments"]
        script = next(fake_renode.temporary.glob("*/start.resc")).read_text()
    assert "--console" in arguments, "with it the monitor does not listen"
    assert not [a for a in arguments if a.startswith(("-P", "--port", "--robot"))]
    assert "CreateUartPtyTerminal" in script and "Socket" not in script and "Gdb" not in script


def test_the_commands_run_as_on_every_board(fake_renode: FakeRenode, tmp_path: Path) -> None:
    data = write_motions(tmp_path / "motions.npz", 24, 1)
    common = ("--data", data, "--board", BOARD, "--classes", CLASSES, "--train", "head")
    out = tmp_path / "trained.tflite"
    trained = mcugrad("train", MODEL, *common, "--epochs", 1, "--lr", 0.02, "--check", 2, "--out", out, "--json").result
    assert (trained["board"], trained["timing"]) == (BOARD, "emulated")
    assert trained["instructions_per_step"] > 10_000
    assert out.exists()
    assert f"{BOARD} equals the reference bit for bit" in mcugrad("check", MODEL, *common, "--steps", 2, "--settle", 4).out
    assert fake_renode.kept() == []


def test_without_renode(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda tool: None if tool == "renode" else which(tool))
    with (
        pytest.raises(UnavailableError, match=r"renode is not on PATH: get it: its portable archive.*antmicro/renode.*brew") as e,
        open_board(BOARD),
    ):
        pass
    assert e.value.exit_code == 69
    mcugrad("bench", MODEL, "--board", BOARD).fails(69, "renode is not on PATH", "portable archive")


def test_an_old_renode_is_told_at_once(fake_renode: FakeRenode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_RENODE_VERSION", "1.16.0")
    with (
        pytest.raises(UnavailableError, match=r"renode is Renode 1\.16\.0, renode-mps3-an547 needs 1\.16\.1 or newer"),
        open_board("renode-mps3-an547"),
    ):
        pass
    assert not (fake_renode.folder / "log").exists(), "it was not started"


@pytest.mark.parametrize(
    ("how", "text"),
    [
        (
            "refuses",
            r"Renode refused renode-mps2-an386: There was an error executing command 'machine LoadSomethingElse' No such command or device",
        ),
        ("dies", r"Renode ended with 134 before renode-mps2-an386 ran: Unhandled exception\. System\.DllNotFoundException"),
        ("hangs", r"Renode did not start renode-mps2-an386 in 1 s: no message"),
    ],
)
def test_what_renode_said_is_told_and_kept(fake_renode: FakeRenode, monkeypatch: pytest.MonkeyPatch, how: str, text: str) -> None:
    monkeypatch.setenv("FAKE_RENODE", how)
    monkeypatch.setattr(renode, "_START_S", 1.0 if how == "hangs" else 20.0)
    with pytest.raises(UnavailableError, match=text) as e, open_board(BOARD):
        pass
    (folder,) = fake_renode.kept()
    assert str(folder / "renode.log") in e.value.hint and (folder / "renode.log").exists()
    with pytest.raises(ProcessLookupError):
        os.kill(fake_renode.started()["pid"], 0)


def test_a_uart_that_is_not_there(fake_renode: FakeRenode) -> None:
    board = replace(find_board(BOARD), renode_uart="sysbus.usart9")
    image = find_board(BOARD).build().elf
    refusal = r"'connector Connect sysbus.usart9 pty' sysbus.usart9 is not there"
    with pytest.raises(UnavailableError, match=refusal), renode.renode_process(board, image) as line:
        Session(line, deadline_s=1.0).hello()


def test_renode_dies_in_the_middle(fake_renode: FakeRenode) -> None:
    with pytest.raises(UnavailableError, match=r"Renode ended with -?\d+ while it ran renode-mps2-an386"), open_board(BOARD) as (_, line):
        session = Session(line, deadline_s=2.0)
        session.hello()
        os.kill(fake_renode.started()["pid"], signal.SIGKILL)
        for _ in range(100):
            session.stats()
            time.sleep(0.05)


def test_nothing_is_left_where_we_are_killed(fake_renode: FakeRenode) -> None:
    use = f"with open_board({BOARD!r}):\n    print('ready', flush=True)\n    time.sleep(99)"
    code = f"import time\nfrom mcugrad.board import open_board\n{use}"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, env=os.environ | {"TMPDIR": str(fake_renode.temporary)}
    ) as us:
        assert us.stdout is not None and us.stdout.readline() == b"ready\n"
        group = os.getpgid(fake_renode.started()["pid"])
        assert group != os.getpgid(us.pid)
        us.kill()
    try:
        assert ends(group)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


def test_an_emulator_counts_no_cycles(fake_renode: FakeRenode, monkeypatch: pytest.MonkeyPatch) -> None:
    board = find_board("renode-stm32f4")
    assert board.tick_unit is board.unit(TickUnit.CYCLES) is board.unit(TickUnit.INSTRUCTIONS) is TickUnit.INSTRUCTIONS
    hello = Session.hello
    monkeypatch.setattr(Session, "hello", lambda session: replace(hello(session), tick_unit=TickUnit.CYCLES))
    measured = mcugrad("bench", MODEL, "--board", BOARD, "--json").result
    assert (measured["unit"], measured["timing"]) == ("instructions", "emulated")


def test_an_estimate_for_all_boards_does_without_them() -> None:
    rows = mcugrad("plan", MODEL, "--estimate", "--board", "all", "--json").result["estimates"]
    assert {row["board"] for row in rows} == {name for name in load_boards() if not name.startswith("renode-")}
