"""The pytest plugin: each way in which a board can fail has its own word, in the terminal and in JUnit, and never stops the next test."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any
from xml.etree import ElementTree

import pytest

from helpers.watch import MODEL
from mcugrad.board import find_board
from mcugrad.errors import PortPermissionError, UnavailableError, VerifyError
from mcugrad.hil import live, plans, step
from mcugrad.hil.board_map import Place
from mcugrad.link import SerialTransport
from mcugrad.paths import root
from mcugrad.ref import run as reference

assert plans and step, "the plugin imports them when they are needed: in the tests below they are there before"

TWO_TESTS = "def test_one(session): pass\n\ndef test_two(session): pass\n"
SHORT = ("--mcugrad-deadline", "0.4")
LONG_S = 5.0
REWRITTEN = "ignore:Module already imported:pytest.PytestAssertRewriteWarning"
"""The plugin was loaded before, in the outer run: nothing is wrong with that."""


class Inner:
    """A pytest run in a folder of its own, in this process."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester = pytester
        self.junit = pytester.path / "junit.xml"

    def run(self, text: str, *arguments: str) -> pytest.RunResult:
        self.pytester.makepyfile(test_it=text)
        common = ("-W", REWRITTEN, "-p", "mcugrad.pytest_plugin", "-p", "no:cacheprovider", f"--junitxml={self.junit}")
        return self.pytester.runpytest_inprocess(*common, *arguments)

    def cases(self) -> list[dict[str, str]]:
        """Of each test in the JUnit file its properties, and under ``tag`` and ``message`` what became of it."""
        found = []
        for case in ElementTree.parse(self.junit).iter("testcase"):
            row = {p.attrib["name"]: p.attrib["value"] for p in case.iter("property")}
            for bad in case:
                if bad.tag in ("error", "failure", "skipped"):
                    row |= {"tag": bad.tag, "message": bad.attrib["message"]}
            found.append(row)
        return found


@pytest.fixture
def inner(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Inner:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # others that are installed here take seconds to load
    return Inner(pytester)


@pytest.fixture
def silent_port() -> Iterator[str]:
    """A port behind which nobody answers."""
    ours, theirs = pty.openpty()
    yield os.ttyname(theirs)
    os.close(ours)
    os.close(theirs)


@dataclass(frozen=True, slots=True)
class Wired:
    """A board that runs the trainer, as hardware does: it was there before the tests, and stays."""

    process: subprocess.Popen[bytes]
    port: str


@pytest.fixture
def wired_board() -> Iterator[Wired]:
    process = subprocess.Popen([str(find_board("host").build().elf)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    yield Wired(process, process.stdout.readline().decode().strip())
    process.stdin.close()
    process.kill()
    process.wait(LONG_S)
    process.stdout.close()


def map_of(folder: Path, **keys: str) -> str:
    """A map with one nucleo-f446re, called desk."""
    path = folder / "map.yaml"
    lines = "".join(f"    {key}: {value}\n" for key, value in keys.items())
    path.write_text(f"boards:\n  - name: desk\n    board: nucleo-f446re\n{lines}", encoding="utf-8")
    return f"--mcugrad-map={path}"


# ---- each trouble has its own word -------------------------------------------------------------------------------------


def test_a_port_that_is_not_there_skips(inner: Inner) -> None:
    done = inner.run(TWO_TESTS, "--mcugrad-board", "serial:/dev/ttyNOWHERE")
    assert done.ret == 0
    assert done.parseoutcomes() == {"no_port": 2}
    done.stdout.fnmatch_lines(["*= boards =*", "test_it.py::test_one*: no_port: there is no port /dev/ttyNOWHERE: list the ports*"])
    assert (
        inner.cases()
        == [
            {
                "mcugrad_board": "serial:/dev/ttyNOWHERE",
                "mcugrad_outcome": "no_port",
                "tag": "skipped",
                "message": "no_port: there is no port /dev/ttyNOWHERE: list the ports with: mcugrad ports",
            }
        ]
        * 2
    )


def test_a_port_that_must_be_there_is_an_error(inner: Inner) -> None:
    done = inner.run(TWO_TESTS, "--mcugrad-board", "serial:/dev/ttyNOWHERE", "--mcugrad-require")
    assert done.ret == 1
    assert done.parseoutcomes() == {"no_port": 2}
    assert [(c["tag"], c["mcugrad_outcome"]) for c in inner.cases()] == [("error", "no_port")] * 2
    assert "Traceback" not in done.stdout.str() and "pytest_plugin.py" not in done.stdout.str()


def test_an_emulator_that_is_not_installed_is_no_port(inner: Inner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(inner.pytester.path))
    done = inner.run(TWO_TESTS, "--mcugrad-board", "qemu-mps2-an386")
    done.stdout.fnmatch_lines(["*no_port: qemu-system-arm is not on PATH: install it: apt install qemu-system-arm"])
    assert done.parseoutcomes() == {"no_port": 2}


def test_without_a_board_nothing_runs(inner: Inner) -> None:
    done = inner.run(TWO_TESTS)
    done.stdout.fnmatch_lines(["*no_port: no board is named: run pytest --mcugrad-board NAME*"])
    assert done.parseoutcomes() == {"no_port": 2}
    assert inner.run(TWO_TESTS, "--mcugrad-require").ret == 1


def test_a_port_that_another_program_holds_is_blocked(inner: Inner, silent_port: str) -> None:
    held = SerialTransport(silent_port)
    done = inner.run(TWO_TESTS, "--mcugrad-board", f"serial:{silent_port}")
    held.close()
    assert done.ret == 1
    assert done.parseoutcomes() == {"blocked": 2}
    done.stdout.fnmatch_lines([f"*blocked: *{silent_port} is held by another program*"])
    assert [(c["tag"], c["mcugrad_outcome"]) for c in inner.cases()] == [("error", "blocked")] * 2


def test_a_port_without_permission_is_blocked(inner: Inner, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_spec: str) -> None:
        raise PortPermissionError("no permission to open /dev/ttyACM0", "join the group dialout")

    monkeypatch.setattr(live, "open_board", refuse)
    done = inner.run(TWO_TESTS, "--mcugrad-board", "serial:/dev/ttyACM0")
    assert done.parseoutcomes() == {"blocked": 2}


def test_a_board_that_does_not_answer_is_a_timeout_and_is_waited_for_once(inner: Inner, silent_port: str) -> None:
    begin = time.monotonic()
    done = inner.run(TWO_TESTS + "\ndef test_three(train_step): pass\n", "--mcugrad-board", f"serial:{silent_port}", *SHORT)
    assert time.monotonic() - begin < LONG_S
    assert done.parseoutcomes() == {"timeout": 3}
    done.stdout.fnmatch_lines(["*timeout: * did not answer HELLO within 0.4 s*"])
    assert [(c["tag"], c["mcugrad_outcome"]) for c in inner.cases()] == [("error", "timeout")] * 3


@pytest.mark.parametrize("error", [UnavailableError("no flashing tool is installed"), VerifyError("3 bytes differ")])
def test_a_board_that_was_not_flashed_is_a_flash_error_and_not_a_silent_board(
    inner: Inner, silent_port: str, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(live, "flash", fail)
    monkeypatch.setattr(live, "open_board", lambda spec: pytest.fail(f"{spec} was opened after a failed flash"))
    done = inner.run(TWO_TESTS, map_of(inner.pytester.path, port=silent_port, flash="true"))
    assert done.ret == 1
    assert done.parseoutcomes() == {"flash_error": 2}
    done.stdout.fnmatch_lines([f"test_it.py::test_one[[]desk]: flash_error: flashing desk failed: {error}"])
    assert "HELLO" not in done.stdout.str()
    assert [(c["tag"], c["mcugrad_board"], c["mcugrad_outcome"]) for c in inner.cases()] == [("error", "desk", "flash_error")] * 2


def test_flashing_is_asked_for_on_the_command_line(inner: Inner, silent_port: str, monkeypatch: pytest.MonkeyPatch) -> None:
    flashed: list[tuple[Any, ...]] = []
    monkeypatch.setattr(live, "flash", lambda board, backend, probe, _: flashed.append((board.name, backend, probe)))
    places = map_of(inner.pytester.path, port=silent_port, probe="A1")
    assert inner.run(TWO_TESTS, places, *SHORT).parseoutcomes() == {"timeout": 2}
    assert flashed == []
    assert inner.run(TWO_TESTS, places, "--mcugrad-flash", *SHORT).parseoutcomes() == {"timeout": 2}
    assert flashed == [("nucleo-f446re", "auto", "A1")]
    refused = inner.run(TWO_TESTS, "--mcugrad-board", f"serial:{silent_port}", "--mcugrad-flash")
    refused.stderr.fnmatch_lines(["ERROR: --mcugrad-flash: which board is at serial:* is not known: give --mcugrad-map FILE.yaml"])


def test_a_board_whose_port_comes_back_late_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    away = iter([UnavailableError("there is no port"), PortPermissionError("no permission yet"), None])
    really = live.open_board

    def open_late(_spec: str) -> Any:
        error = next(away)
        if error is not None:
            raise error
        return really("host")

    monkeypatch.setattr(live, "open_board", open_late)
    board = live.LiveBoard(Place("desk", "", "/dev/ttyACM0", flash=True), 2.0, lambda _: None)
    board.close()
    assert next(away, "all") == "all"


def test_another_board_than_the_map_says_is_blocked(inner: Inner, wired_board: Wired) -> None:
    done = inner.run(TWO_TESTS, map_of(inner.pytester.path, port=wired_board.port))
    done.stdout.fnmatch_lines([f"*blocked: host answers on {wired_board.port}, the map says nucleo-f446re for desk: correct the map*"])
    assert done.parseoutcomes() == {"blocked": 2}


def test_a_failed_test_is_failed(inner: Inner) -> None:
    text = "def test_one(session):\n    assert session.caps.slot_bytes == 1\n\ndef test_two(session): pass\n"
    done = inner.run(text, "--mcugrad-board", "host")
    assert done.ret == 1
    done.assert_outcomes(failed=1, passed=1)
    done.stdout.fnmatch_lines(["E * assert * == 1"])
    assert [c["mcugrad_outcome"] for c in inner.cases()] == ["failed", "passed"]


def test_what_the_device_refuses_is_failed(inner: Inner) -> None:
    done = inner.run("def test_one(session):\n    session.train(0, 0.1, 0.0)\n", "--mcugrad-board", "host")
    done.assert_outcomes(failed=1)
    assert "MG_LINK_ERR_NO_PLAN" in inner.cases()[0]["message"]


def test_words_that_name_no_board_end_the_run_at_once(inner: Inner) -> None:
    done = inner.run(TWO_TESTS, "--mcugrad-board", "qemu-mps2-an368")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines(["ERROR: there is no board 'qemu-mps2-an368': did you mean qemu-mps2-an386?*"])
    assert inner.run(TWO_TESTS, "--mcugrad-board", "host", "--mcugrad-deadline", "0").ret == pytest.ExitCode.USAGE_ERROR
    assert inner.run(TWO_TESTS, "--mcugrad-map=none.yaml").ret == pytest.ExitCode.USAGE_ERROR


# ---- a board lives from test to test -----------------------------------------------------------------------------------


def test_a_test_that_lost_the_board_leaves_the_next_one_a_new_one(inner: Inner) -> None:
    text = """
        def test_one(board, session):
            board.line.close()
            session.stats()

        def test_two(session):
            assert session.stats().damaged_frames == 0
    """
    done = inner.run(text, "--mcugrad-board", "host")
    assert done.parseoutcomes() == {"timeout": 1, "passed": 1}
    done.stdout.fnmatch_lines(["*session.stats()*", "*test_it.py::test_one*went away*"])
    assert [(c.get("tag"), c["mcugrad_outcome"]) for c in inner.cases()] == [("failure", "timeout"), (None, "passed")]


def test_a_board_that_does_not_come_back_is_not_waited_for_again(inner: Inner, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    really = live.open_board

    def once(spec: str) -> Any:
        opened.append(spec)
        if len(opened) > 1:
            raise UnavailableError("there is no port")
        return really(spec)

    monkeypatch.setattr(live, "open_board", once)
    text = "def test_one(board, session): board.line.close()\n" + TWO_TESTS.replace("_one", "_after")
    done = inner.run(text, "--mcugrad-board", "host")
    assert done.parseoutcomes() == {"passed": 1, "no_port": 2}
    assert opened == ["host", "host"]
    assert [c.get("tag") for c in inner.cases()] == [None, "error", "error"], "only a board that never was there skips"


def test_a_silent_board_has_its_power_taken_away_and_given_back(wired_board: Wired) -> None:
    wake = (sys.executable, "-c", f"import os, signal; os.kill({wired_board.process.pid}, signal.SIGCONT)")
    board = live.LiveBoard(Place("desk", "", wired_board.port, power=wake), 1.0, live.flash_place)
    board.session()
    wired_board.process.send_signal(signal.SIGSTOP)
    board.session().stats()
    board.close()


def test_a_power_command_that_fails_is_said_and_not_tried_again(wired_board: Wired) -> None:
    board = live.LiveBoard(Place("desk", "", wired_board.port, power=("false",)), 0.5, live.flash_place)
    wired_board.process.send_signal(signal.SIGSTOP)
    for _ in range(2):
        with pytest.raises(UnavailableError, match="the power command of desk ended with 1"):
            board.session()
        wired_board.process.send_signal(signal.SIGCONT)


def test_no_plan_is_left_over_from_the_test_before(inner: Inner) -> None:
    inner.pytester.path.joinpath("model.tflite").write_bytes(MODEL.read_bytes())
    text = """
        import numpy as np
        import pytest
        from mcugrad.errors import LinkError

        SAMPLE = np.zeros((128, 6), np.float32)

        @pytest.mark.parametrize("n", [1, 2])
        def test_fresh(train_step, n):
            first = train_step("model.tflite", SAMPLE, 3, 0.1)
            assert (first.step, first.equals_reference()) == (0, True)
            assert train_step("model.tflite", SAMPLE, 3, 0.1).state != first.state

        def test_bare(session):
            with pytest.raises(LinkError, match="no plan was loaded"):
                session.read_state()
    """
    inner.run(text, "--mcugrad-board", "host").assert_outcomes(passed=3)


def test_a_serial_board_runs_tests_and_tells_its_own_sizes(inner: Inner, wired_board: Wired) -> None:
    text = "def test_one(board, session):\n    assert board.facts.ram_bytes == 1_048_576\n    assert session.caps.board == 'host'\n"
    inner.run(text, "--mcugrad-board", f"serial:{wired_board.port}").assert_outcomes(passed=1)


def test_each_board_is_opened_once(inner: Inner, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    really = live.open_board
    monkeypatch.setattr(live, "open_board", lambda spec: (opened.append(spec), really(spec))[1])
    done = inner.run(TWO_TESTS, "--mcugrad-board", "host", "--mcugrad-board", "qemu-mps2-an386", "--mcugrad-board", "host")
    done.assert_outcomes(passed=4)
    assert opened == ["host", "qemu-mps2-an386"]


# ---- train_step --------------------------------------------------------------------------------------------------------


def test_a_step_that_differs_is_named(inner: Inner, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(scalars: Any, arrays: Mapping[str, Any]) -> Any:
        found = reference_kernels["linear_fwd_s32"](scalars, arrays)
        arrays["y"][..., 0] ^= 1
        return found

    reference_kernels = reference.KERNELS
    monkeypatch.setattr(reference, "KERNELS", MappingProxyType({**reference_kernels, "linear_fwd_s32": wrong}))
    inner.pytester.path.joinpath("model.tflite").write_bytes(MODEL.read_bytes())
    text = """
        import numpy as np

        def test_one(train_step):
            assert train_step("model.tflite", np.zeros((128, 6), np.float32), 3).equals_reference()
    """
    done = inner.run(text, "--mcugrad-board", "host")
    done.assert_outcomes(failed=1)
    done.stdout.re_match_lines(
        [r"E .*<training step 0 on host, loss .*: first differs in step \d+ \(linear_fwd_s32 linear_0\): CRC .* in the reference>"]
    )


# ---- a guest in other people's runs ------------------------------------------------------------------------------------


def test_fixtures_and_arguments_of_the_same_names_are_left_alone(inner: Inner) -> None:
    text = """
        import pytest

        @pytest.fixture
        def session():
            return "mine"

        @pytest.mark.parametrize("board", ["a", "b"])
        def test_one(session, board):
            assert session == "mine" and board in "ab"
    """
    inner.run(text, "--mcugrad-board", "host").assert_outcomes(passed=2)
    assert [c.get("mcugrad_board") for c in inner.cases()] == [None, None]


def test_nothing_heavy_is_imported_by_every_pytest_and_no_pytest_by_mcugrad() -> None:
    guest = "import sys, mcugrad.pytest_plugin; assert not {'numpy', 'serial', 'click'} & set(sys.modules), sorted(sys.modules)"
    base = "import sys, mcugrad.cli, mcugrad.hil.live, mcugrad.hil.step, mcugrad.hil.plans; assert 'pytest' not in sys.modules"
    for text in (guest, base):
        subprocess.run([sys.executable, "-c", text], check=True, env={**os.environ, "PYTHONPATH": str(root() / "host")})
