"""A line whose bytes take their time: the rate that is agreed on, how full the line is, and what travels while the board computes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from helpers.modelled_board import BITS_PER_BYTE, ModelledBoard
from helpers.tiny_plan import samples, tiny_plan
from mcugrad.errors import LinkError
from mcugrad.link import Session
from mcugrad.link.baud import RATES, negotiate, speed_up
from mcugrad.link.protocol import START_BAUD

SKIP = 0.0
RATE = 921_600
OPERATORS = 5
"""Of a training step of the tiny plan: so often does its device look at the line while it computes, and once more stands its stopwatch."""


@pytest.mark.parametrize(
    ("noisy", "possible", "agreed"),
    [
        (frozenset(), None, 1_000_000),
        ({921_600}, None, 1_000_000),
        ({1_000_000}, None, 921_600),
        ({1_000_000, 921_600}, None, 460_800),
        (frozenset(), {115_200, 230_400, 460_800}, 460_800),
        ({460_800}, {115_200, 230_400, 460_800}, 230_400),
        (set(RATES), None, START_BAUD),
        (frozenset(), {115_200}, START_BAUD),
    ],
)
def test_the_fastest_rate_that_carries_frames(
    modelled_library: Path, tmp_path: Path, noisy: set[int], possible: set[int] | None, agreed: int
) -> None:
    """Both ends have it at the end, whatever was tried; a plan trains on it, and the state of the board is not touched on the way."""
    able = None if possible is None else frozenset(possible)
    with ModelledBoard(modelled_library, tmp_path, noisy=frozenset(noisy), possible=able) as board:
        session = Session(board, clock=board.clock)
        session.hello()
        assert negotiate(session) == agreed == board.rate == board.device_rate == session.rate
        assert board.clock() < 4
        session.load_plan(tiny_plan())
        assert len(list(session.train_stream(samples(20), SKIP))) == 20


def test_a_port_that_cannot_have_a_rate(modelled_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ModelledBoard(modelled_library, tmp_path) as board:
        set_baud = board.set_baud
        monkeypatch.setattr(board, "set_baud", lambda rate: rate <= 230_400 and set_baud(rate))
        session = Session(board, clock=board.clock)
        session.hello()
        assert negotiate(session) == 230_400 == board.device_rate


def test_a_rate_is_left_alone_where_the_user_named_one(modelled_library: Path, tmp_path: Path) -> None:
    with ModelledBoard(modelled_library, tmp_path) as board:
        session = Session(board, clock=board.clock)
        session.hello()
        assert speed_up(session, board) is None and board.device_rate == START_BAUD


def test_a_line_that_turns_bad_later(modelled_library: Path, tmp_path: Path) -> None:
    """Both ends find back to 115,200 in the middle of a run, and STATE is that of a quiet line."""
    plan, data = tiny_plan(40), samples(60, 40)
    states = []
    for bad_from in (None, 20):
        with ModelledBoard(modelled_library, tmp_path) as board:
            session = Session(board, clock=board.clock)
            session.hello()
            assert session.change_rate(RATE)
            session.load_plan(plan)
            for k, _ in enumerate(session.train_stream(data, SKIP)):
                if k == bad_from:
                    board.break_rate(RATE)
            states.append(session.read_state())
            assert (board.rate, board.device_rate) == ((RATE, RATE) if bad_from is None else (START_BAUD, START_BAUD))
    assert states[0] == states[1]


def test_a_host_that_comes_back_at_115200(modelled_library: Path, tmp_path: Path) -> None:
    """Killed at 921,600, it knows nothing of that: the board hears noise, and goes back."""
    with ModelledBoard(modelled_library, tmp_path) as board:
        first = Session(board, clock=board.clock)
        first.hello()
        assert first.change_rate(RATE)
        board.set_baud(START_BAUD)
        second = Session(board, clock=board.clock)
        assert second.hello().board == "modelled" and board.device_rate == START_BAUD


def test_a_goodbye_leaves_the_first_rate(modelled_library: Path, tmp_path: Path) -> None:
    with ModelledBoard(modelled_library, tmp_path) as board:
        session = Session(board, clock=board.clock)
        session.hello()
        assert session.change_rate(RATE)
        session.bye()
        assert board.device_rate == START_BAUD
        session.hello()
        assert (board.rate, session.rate) == (START_BAUD, START_BAUD)


def test_a_mute_board_is_given_up_at_any_rate(modelled_library: Path, tmp_path: Path) -> None:
    with ModelledBoard(modelled_library, tmp_path) as board:
        session = Session(board, deadline_s=10, clock=board.clock)
        session.hello()
        assert session.change_rate(RATE)
        board.break_rate(RATE)
        board.break_rate(START_BAUD)
        start = board.clock()
        with pytest.raises(LinkError, match="did not"):
            session.stats()
        assert board.clock() - start < 12


def trained_s(library: Path, folder: Path, inputs: int, count: int, *, compute_s: float, ahead: bool) -> tuple[float, bytes]:
    """(seconds that ``count`` samples took at 921,600, STATE). ``ahead``: as the board offers it, or as if it had no room."""
    with ModelledBoard(library, folder) as board:
        session = Session(board, clock=board.clock)
        session.hello()
        assert session.change_rate(RATE)
        loaded = session.load_plan(tiny_plan(inputs))
        assert loaded.ahead_bytes == inputs
        if not ahead:
            session._loaded = replace(loaded, ahead_bytes=0)
        board.stop_s = compute_s / (OPERATORS + 1 if ahead else 1)
        start = board.clock()
        assert len(list(session.train_stream(samples(count, inputs), SKIP))) == count
        seconds = board.clock() - start
        assert board.overruns == session.damaged_frames == 0
        return seconds, session.read_state()


@pytest.mark.parametrize("inputs", [490, 3072, 12288])
def test_the_line_is_full(modelled_library: Path, tmp_path: Path, inputs: int) -> None:
    """At least 90 % of what the line carries at 921,600 baud are samples; heads, checksums and arguments of steps are the rest."""
    count = 60_000 // inputs
    seconds, _ = trained_s(modelled_library, tmp_path, inputs, count, compute_s=0.0, ahead=True)
    share = count * inputs * BITS_PER_BYTE / RATE / seconds
    print(f"\n{inputs} bytes a sample: {100 * share:.1f} % of the line")
    assert share >= 0.9


def test_samples_travel_while_the_board_computes(modelled_library: Path, tmp_path: Path) -> None:
    """12 KB travel in 133 ms and are computed in 130: together they take hardly longer than one of both."""
    inputs, count, compute_s = 12_288, 12, 0.13
    travel_s = inputs * BITS_PER_BYTE / RATE
    together, state = trained_s(modelled_library, tmp_path, inputs, count, compute_s=compute_s, ahead=True)
    after_another, same = trained_s(modelled_library, tmp_path, inputs, count, compute_s=compute_s, ahead=False)
    print(f"\n{1000 * together / count:.0f} ms a sample, {1000 * after_another / count:.0f} one after the other")
    assert state == same
    assert after_another > 1.45 * together
    assert together < 1.15 * (count + 1) * max(travel_s, compute_s)
