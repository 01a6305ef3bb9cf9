"""The pytest plugin: tests of a user's own model on a board, `pytest --mcugrad-board NAME`.

Loaded by pytest in every run of an environment that has mcugrad: what it needs beyond this file waits until a board is asked for.
"""

# ruff: noqa: PLC0415

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mcugrad.errors import McugradError, UnavailableError, UsageError

if TYPE_CHECKING:
    from mcugrad.hil.board_map import Place
    from mcugrad.hil.live import LiveBoard
    from mcugrad.hil.plans import Plans
    from mcugrad.hil.step import TrainStep
    from mcugrad.link import Session
    from mcugrad.pipeline import Compiled

PLACE = "mcugrad_place"
BOARD_PROPERTY, OUTCOME_PROPERTY = "mcugrad_board", "mcugrad_outcome"

_TROUBLES = {"flash_error": "L", "no_port": "N", "blocked": "B", "timeout": "T"}
"""Outcomes that are no verdict on what was tested, and their letters in the line of dots."""

_places = pytest.StashKey["tuple[Place, ...]"]()


class NoPort(pytest.skip.Exception):  # type: ignore[name-defined,misc]
    """The board is not there, and --mcugrad-require was not given."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options, and mcugrad_boards for the configuration file."""
    group = parser.getgroup("mcugrad", "tests on a board")
    group.addoption(
        "--mcugrad-board",
        action="append",
        default=[],
        metavar="NAME",
        help="run on this board: host, qemu-…, renode-…, serial:PORT[:BAUD], or a name of --mcugrad-map; more than once: on each",
    )
    group.addoption(
        "--mcugrad-map", type=Path, metavar="FILE", help="the boards on the bench, .yaml or .json; without --mcugrad-board: all"
    )
    group.addoption("--mcugrad-flash", action="store_true", help="write the trainer firmware into every real board of the map first")
    group.addoption("--mcugrad-require", action="store_true", help="a board that is not there is an error, not a skipped test")
    group.addoption(
        "--mcugrad-deadline", type=float, default=30.0, metavar="S", help="the longest wait for a board, in seconds (default: 30)"
    )
    parser.addini("mcugrad_boards", "boards to run on where the command line names none", type="args", default=[])


def pytest_configure(config: pytest.Config) -> None:
    """Read the map and find the boards, so that a wrong name ends the run before it begins."""
    if config.getoption("mcugrad_deadline") <= 0:
        raise pytest.UsageError("--mcugrad-deadline: a number of seconds above 0")
    try:
        config.stash[_places] = _chosen(config)
    except McugradError as e:
        raise pytest.UsageError(str(e)) from None


def _chosen(config: pytest.Config) -> tuple[Place, ...]:
    """The places of the command line, else all of the map, else those of the configuration file."""
    file = config.getoption("mcugrad_map")
    words = config.getoption("mcugrad_board") or ([] if file else config.getini("mcugrad_boards"))
    if not words and file is None:
        return ()
    from mcugrad.hil.board_map import place_of, read_map

    known = read_map(file) if file else {}
    places = [known[w] if w in known else place_of(w) for w in dict.fromkeys(words)] if words else list(known.values())
    if not config.getoption("mcugrad_flash"):
        return tuple(places)
    unknown = next((p for p in places if p.port and not p.board), None)
    if unknown:
        raise UsageError(f"--mcugrad-flash: which board is at {unknown.name} is not known", "give --mcugrad-map FILE.yaml")
    return tuple(replace(p, flash=bool(p.port)) for p in places)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each test that reaches the fixture ``board`` runs once for every place; all tests of one place run together."""
    places = metafunc.config.stash[_places]
    if PLACE in metafunc.fixturenames and places:
        metafunc.parametrize(PLACE, places, ids=[p.name for p in places], indirect=True, scope="session")


# ---- fixtures ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def mcugrad_place(request: pytest.FixtureRequest) -> Place:
    """The place that this test runs on."""
    if not hasattr(request, "param"):
        raise _absent(request.config, UnavailableError("no board is named", "run pytest --mcugrad-board NAME, for example host"))
    place: Place = request.param
    return place


@pytest.fixture(scope="session")
def board(request: pytest.FixtureRequest, mcugrad_place: Place) -> Iterator[LiveBoard]:
    """The board of --mcugrad-board, flashed where the map says so, open and answering: ``name``, ``facts``, ``line``, ``caps``.

    What fails here fails once; the other tests of this board are told the same at once.
    """
    from mcugrad.hil.live import LiveBoard, flash_place

    try:
        live = LiveBoard(mcugrad_place, request.config.getoption("mcugrad_deadline"), flash_place)
    except UnavailableError as e:
        raise _absent(request.config, e) from None
    try:
        yield live
    finally:
        live.close()


@pytest.fixture
def session(board: LiveBoard) -> Session:
    """A session that is open, with no plan loaded. A board that an earlier test left silent was opened anew."""
    return board.session()


@pytest.fixture(scope="session")
def mcugrad_plans(board: LiveBoard) -> Plans:
    """The plans of this board, each compiled once."""
    from mcugrad.hil.plans import Plans

    return Plans(board.facts)


@pytest.fixture
def compile_plan(request: pytest.FixtureRequest, mcugrad_plans: Plans) -> Callable[..., Compiled]:
    """compile_plan(model, train="head", classes=None, options=…, loss=…, channels=…) -> the plan, within the board's RAM.

    A relative path is looked for beside the test file, then where pytest was started.
    """

    def compiled(model: str | Path, *arguments: Any, **options: Any) -> Compiled:
        beside = request.path.parent / model
        return mcugrad_plans.compile(beside if beside.exists() else Path(model), *arguments, **options)

    return compiled


@pytest.fixture
def train_step(board: LiveBoard, session: Session, compile_plan: Callable[..., Compiled]) -> TrainStep:
    """train_step(model, sample, label, lr, train=…) -> what the board did, beside the reference: see mcugrad.hil.step.TrainStep."""
    from mcugrad.hil.step import TrainStep

    return TrainStep(board.name, session, compile_plan)


def _absent(config: pytest.Config, error: UnavailableError) -> Exception:
    """What a board that is not there raises: an error where --mcugrad-require says so, else the test is skipped."""
    return error if config.getoption("mcugrad_require") else NoPort(str(error))


# ---- reports -----------------------------------------------------------------------------------------------------------


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Every report of a test on a board says which board, and what became of the test; JUnit has both as properties."""
    report = yield
    place = getattr(item, "callspec", None) and item.callspec.params.get(PLACE)  # type: ignore[attr-defined]
    if place is None and PLACE not in getattr(item, "fixturenames", ()):
        return report
    said = dict(item.user_properties)
    if place is not None and BOARD_PROPERTY not in said:
        _note(item, report, BOARD_PROPERTY, place.name)
    outcome = _outcome(report, call)
    if outcome and OUTCOME_PROPERTY not in said:
        _note(item, report, OUTCOME_PROPERTY, outcome)
    if outcome in _TROUBLES and call.excinfo is not None:
        _shorten(report, f"{outcome}: {call.excinfo.value}")
    return report


def _shorten(report: pytest.TestReport, text: str) -> None:
    """One line in place of a traceback through this plugin; where the test itself stood when the line broke stays to be seen."""
    if isinstance(report.longrepr, tuple):
        report.longrepr = (*report.longrepr[:2], f"Skipped: {text}")
    elif report.when != "call":
        report.longrepr = text


def _note(item: pytest.Item, report: pytest.TestReport, name: str, value: str) -> None:
    item.user_properties.append((name, value))
    report.user_properties.append((name, value))


def _outcome(report: pytest.TestReport, call: pytest.CallInfo[None]) -> str:
    """The word for what this phase of a test came to; empty where the test goes on."""
    if report.failed and call.excinfo is not None:
        from mcugrad.hil.outcome import outcome_of

        return outcome_of(call.excinfo.value).value
    if report.skipped:
        return "no_port" if call.excinfo is not None and isinstance(call.excinfo.value, NoPort) else "skipped"
    return "passed" if report.when == "teardown" else ""


def pytest_report_teststatus(report: pytest.CollectReport | pytest.TestReport) -> tuple[str, str, str] | None:
    """Trouble with a board is counted under its own name."""
    outcome = str(dict(getattr(report, "user_properties", ())).get(OUTCOME_PROPERTY))
    if outcome in _TROUBLES and (report.failed or report.skipped):
        return outcome, _TROUBLES[outcome], outcome.upper()
    return None


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """What was wrong with the boards, a line for each test that it stopped."""
    reports = [report for outcome in _TROUBLES for report in terminalreporter.stats.get(outcome, ())]
    if reports:
        terminalreporter.section("boards")
    for report in reports:
        if report.when == "call":
            terminalreporter.write_line(report.longreprtext)
        text = report.longrepr[2].removeprefix("Skipped: ") if isinstance(report.longrepr, tuple) else _last_line(report)
        terminalreporter.write_line(f"{report.nodeid}: {text}")


def _last_line(report: pytest.TestReport) -> str:
    """The message of a report; of a traceback the line of the exception."""
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(report.longrepr if crash is None else crash.message).splitlines()[0]
