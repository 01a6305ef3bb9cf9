"""The link under fire: every byte of every frame type hit once, sizes around every border, a busy board, a peer that stops anywhere.

Training ends with the STATE of an undisturbed run, or stops with exit 75 and is taken up again with the same end.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.faulty_line import AimedTransport, Between, DeadTransport, Fault, FaultyTransport, TcpRelay, Way
from helpers.graphs import GRAPHS, random_samples
from helpers.modelled_board import ModelledBoard
from helpers.tiny_plan import samples, tiny_plan
from mcugrad.board import Firmware, open_board
from mcugrad.data import DataSet
from mcugrad.errors import LinkError
from mcugrad.link import Command, Region, Session, Transport
from mcugrad.link.frame import Decoder
from mcugrad.link.protocol import REPLY
from mcugrad.lower import Options
from mcugrad.pipeline import compile_graph
from mcugrad.training.progress import Progress, begin, read_progress, take_up, write_progress
from mcugrad.training.recipe import Recipe
from mcugrad.training.run import Keeping, Step, train

INPUTS = 5
SKIP = 0.0
FAULTS = list(Fault)
DEADLINE_S = 20.0


# ---- every byte of every frame type ---------------------------------------------------------------------------------------


def tour(session: Session) -> list[Any]:
    """Every command of a host, once or more. Returns what it brought, which is the same each time."""
    plan, data = tiny_plan(INPUTS, af=5), samples(8, INPUTS)
    session.hello()
    found: list[Any] = [session._call(Command.BAUD, (115_200).to_bytes(4, "little") + bytes(9))]
    session.load_plan(plan)
    session.trace_on()
    session.sample(data[0][0])
    found.append(session.train(data[0][1], 0.02, SKIP).loss)
    session.commit()
    found.append(session.read(Region.TRACE, 0, 24))
    session.trace_off()
    session.sample(data[1][0])
    found.append(session.predict().output.tobytes())
    found += [r.loss for r in session.train_stream(data, SKIP, {1, 3, 7})]
    state = session.read_state()
    session.reset()
    session.write_state(state)
    found += [session.read_state(), session.stats().arena_touched_bytes]
    saved = session.save()
    session.reset()
    found += [session.restore() - saved, session.read_state(), session.save() - saved, len([s for s in session.checkpoints().slots if s])]
    session.reset()
    session.restart()
    found += [session.checkpoints().restored - saved, session.read_state()]
    session.bye()
    return found


class Watched(Between):
    """Counts the bytes of each way and notes the frame types."""

    def __init__(self, inner: Transport) -> None:
        super().__init__("watched", inner)
        self.bytes = {Way.COMMAND: 0, Way.REPLY: 0}
        self.types: set[int] = set()
        self._decoders = {way: Decoder() for way in Way}

    def _pass(self, data: bytes, way: Way) -> bytes:
        self.bytes[way] += len(data)
        self.types |= {f.type for f in self._decoders[way].push(data)}
        return data


@pytest.fixture(scope="module")
def toured(modelled_library: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Any], Watched]:
    """An undisturbed tour."""
    with ModelledBoard(modelled_library, tmp_path_factory.mktemp("toured")) as board:
        watched = Watched(board)
        return tour(Session(watched, DEADLINE_S, clock=board.clock)), watched


def test_the_tour_has_every_command(toured: tuple[list[Any], Watched]) -> None:
    expected = set(Command) - {Command.SYNC}
    assert toured[1].types == expected | {c | REPLY for c in expected}


def shots(watched: Watched) -> list[tuple[Way, int, Fault]]:
    """All ways to hit one byte of a tour."""
    return [(way, at, fault) for way in Way for at in range(watched.bytes[way]) for fault in FAULTS]


def fire(board: Transport, clock: Callable[[], float] | None, aims: list[tuple[Way, int, Fault]], expected: list[Any]) -> int:
    """A tour a shot; returns how many hit."""
    line = AimedTransport(board)
    session = Session(line, DEADLINE_S, 0.02) if clock is None else Session(line, DEADLINE_S, clock=clock)
    hits = 0
    for way, at, fault in aims:
        line.arm(way, at, fault)
        assert tour(session) == expected, (way, at, fault)
        hits, line.hits = hits + line.hits, 0
    return hits


@pytest.mark.parametrize("part", range(2))
def test_bytes_of_every_frame_hit_once(modelled_library: Path, tmp_path: Path, toured: tuple[list[Any], Watched], part: int) -> None:
    expected, watched = toured
    aims = random.Random(part).sample(shots(watched), 90)
    with ModelledBoard(modelled_library, tmp_path) as board:
        assert fire(board, board.clock, aims, expected) >= 86


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("way", Way)
def test_a_damaged_restart_is_done(modelled_library: Path, tmp_path: Path, way: Way, fault: Fault) -> None:
    """Where its reply is lost, a device without a session is the answer."""
    with ModelledBoard(modelled_library, tmp_path) as board:
        line = AimedTransport(board)
        session = Session(line, DEADLINE_S, clock=board.clock)
        session.hello()
        session.load_plan(tiny_plan())
        saved = session.save()
        for at in range(9):
            line.arm(way, at, fault)
            session.restart()
            assert line.hits == at + 1 and session.checkpoints().restored == saved


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("fault", FAULTS)
def test_every_byte_of_every_frame(modelled_library: Path, tmp_path: Path, toured: tuple[list[Any], Watched], fault: Fault) -> None:
    """More than 2,500 damaged frames each, 13,000 in all: the bytes of a tour are hit one after the other."""
    expected, watched = toured
    aims = [shot for shot in shots(watched) if shot[2] is fault]
    with ModelledBoard(modelled_library, tmp_path) as board:
        assert fire(board, board.clock, aims, expected) >= 0.98 * len(aims) and len(aims) > 2500


@contextmanager
def on_pty(firmware: Firmware, tmp_path: Path) -> Iterator[Transport]:
    with open_board("host", firmware) as (_, line):
        yield line


@contextmanager
def on_tcp(firmware: Firmware, tmp_path: Path) -> Iterator[Transport]:
    with open_board("host", firmware) as (_, inner), TcpRelay(inner) as relay, open_board(f"serial:{relay.address}") as (_, line):
        yield line


@pytest.mark.parametrize("kind", [on_pty, on_tcp])
def test_bytes_hit_on_real_lines(host_firmware: Firmware, tmp_path: Path, toured: tuple[list[Any], Watched], kind: Any) -> None:
    expected, watched = toured
    with kind(host_firmware, tmp_path) as line:
        assert fire(line, None, random.Random(3).sample(shots(watched), 25), expected) >= 20


@pytest.mark.parametrize("rate", [0.0005, 0.002])
def test_a_line_that_damages_all_the_time(modelled_library: Path, tmp_path: Path, rate: float) -> None:
    """Frames by the hundred, one in five or more of them damaged: STATE is that of a quiet line."""
    plan, data = tiny_plan(60), samples(300, 60)
    states = []
    for noise in (0.0, rate):
        with ModelledBoard(modelled_library, tmp_path) as board:
            faulty = FaultyTransport(board, 5, noise)
            session = Session(faulty, DEADLINE_S, clock=board.clock)
            session.hello()
            session.load_plan(plan)
            assert len(list(session.train_stream(data, SKIP))) == len(data)
            states.append(session.read_state())
    assert states[0] == states[1] and faulty.faults > 15


# ---- sizes ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "inputs",
    [1, 63, 64, 65, 255, 1029, 4095, 4097, pytest.param(4096, marks=pytest.mark.slow), pytest.param(65535, marks=pytest.mark.slow)],
)
def test_streams_around_the_borders(modelled_library: Path, tmp_path: Path, inputs: int) -> None:
    """A sample of so many bytes; plan and STATE have sizes of their own around 6 times that. A byte in ten thousand is damaged."""
    plan, data = tiny_plan(inputs), samples(2, inputs)
    states = []
    for noise in (0.0, 0.0001):
        with ModelledBoard(modelled_library, tmp_path) as board:
            session = Session(FaultyTransport(board, 7, noise), DEADLINE_S, clock=board.clock)
            session.hello()
            session.load_plan(plan)
            assert len(list(session.train_stream(data, SKIP))) == 2
            state = session.read_state()
            session.reset()
            session.write_state(state)
            assert session.read_state() == state
            states.append(state)
    assert states[0] == states[1]


@pytest.mark.parametrize("n", [1, 63, 64, 65, 255, 1028, 1032])
def test_bodies_around_the_borders(session: Session, n: int) -> None:
    """The largest body is CAPS.max_body: 1,032 bytes there; each comes back as it went."""
    assert session.caps.max_body_bytes == 1032
    body = (115_200).to_bytes(4, "little") + bytes(k % 7 * 36 for k in range(max(0, n - 4)))
    assert session._call(Command.BAUD, body) == body


# ---- a busy board ---------------------------------------------------------------------------------------------------------


def busy(library: Path, folder: Path, count: int) -> ModelledBoard:
    """Train ``count`` samples on a board that computes 50 ms for each, at a rate at which a sample travels in 1 ms."""
    with ModelledBoard(library, folder) as board:
        session = Session(board, DEADLINE_S, clock=board.clock)
        session.hello()
        assert session.change_rate(921_600)
        session.load_plan(tiny_plan(40))
        board.stop_s = 0.05 / 6
        assert len(list(session.train_stream(samples(count, 40), SKIP))) == count
        assert session.damaged_frames == session.stats().damaged_frames == 0
        return board


def test_a_busy_board_loses_nothing(modelled_library: Path, tmp_path: Path) -> None:
    assert busy(modelled_library, tmp_path, 300).overruns == 0


@pytest.mark.slow
def test_ten_thousand_frames_to_a_busy_board(modelled_library: Path, tmp_path: Path) -> None:
    assert busy(modelled_library, tmp_path, 3400).overruns == 0


@pytest.mark.slow
@pytest.mark.qemu
@pytest.mark.timeout(1200)
def test_ten_thousand_frames_to_a_busy_emulated_board() -> None:
    """Three frames a sample; the emulated core computes while they arrive, and its ring of 4 KB never overflows."""
    plan, data = tiny_plan(40), samples(3400, 40)
    with open_board("qemu-mps2-an385") as (_, line):
        session = Session(line)
        session.hello()
        session.load_plan(plan)
        assert len(list(session.train_stream(data, SKIP))) == len(data)
        stats = session.stats()
    assert (stats.rx_overruns, stats.damaged_frames, session.damaged_frames) == (0, 0, 0)


# ---- a peer that stops, and the way on ------------------------------------------------------------------------------------


EPOCHS = 2
SAMPLES = 7


class Run:
    """A run of `train`, without its words: ``go`` begins it, or takes it up from ``file``, on a board as it stands."""

    def __init__(self, batch: int, file: Path, every: int = 0) -> None:
        self.compiled = compile_graph(GRAPHS["chain"](3), "all", Options(batch=batch))
        graph = self.compiled.model
        x = np.stack([s.reshape(graph.tensors[graph.input].shape[1:]) for s in random_samples(graph, SAMPLES)])
        self.data = DataSet(x, np.arange(SAMPLES) % 4)
        self.recipe = Recipe(EPOCHS, 0.02, "cosine", SKIP, 1, batch)
        self.file, self.every = file, every
        self.acknowledged = 0
        self.source = "start"

    def go(self, session: Session, *, resume: bool) -> bytes:
        """STATE at the end. Raises LinkError where the line stops."""
        session.hello()
        if resume:
            taken = take_up(session, self.compiled, read_progress(self.file), SAMPLES)
            progress, position, self.source = taken.progress, taken.position, taken.source
            if self.source == "board":
                assert self.acknowledged <= position <= self.acknowledged + session.caps.window_frames
        else:
            session.load_plan(self.compiled.plan)
            progress, position = begin(session, Progress.of(self.compiled, self.data, self.recipe)), 0
        write_progress(self.file, progress)
        self.acknowledged = position

        def keep(n: int) -> None:
            write_progress(self.file, replace(progress, position=n, state=session.read_state()))

        def note(step: Step) -> None:
            self.acknowledged = step.step + 1

        self.started(session)
        train(session, self.data, self.recipe, note, keeping=Keeping(self.every, keep), begin=position)
        return session.read_state()

    def started(self, session: Session) -> None:
        """Called when everything is ready to train."""


class CutRun(Run):
    """A run whose line stops ``at`` bytes of one way after training has begun."""

    way, at = Way.REPLY, 0

    def started(self, session: Session) -> None:
        line = session._transport
        if isinstance(line, DeadTransport):
            line.allowed = self.at


@pytest.fixture(scope="module", params=[1, 3], ids=["batch 1", "batch 3"])
def undisturbed(
    request: pytest.FixtureRequest, modelled_library: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[int, bytes, Watched]:
    """(batch, STATE at the end, what went over the line)"""
    folder = tmp_path_factory.mktemp("undisturbed")
    run = Run(request.param, folder / "run.progress")
    with ModelledBoard(modelled_library, folder) as board:
        watched = Watched(board)
        session = Session(watched, DEADLINE_S, clock=board.clock)
        run.started = lambda _session: watched.bytes.update({way: 0 for way in Way})  # type: ignore[method-assign]
        return request.param, run.go(session, resume=False), watched


def cut_and_resume(library: Path, folder: Path, run: CutRun, state: bytes, *, new_board: bool) -> None:
    with ModelledBoard(library, folder) as board:
        session = Session(DeadTransport(board, run.way, 1 << 60), DEADLINE_S, clock=board.clock)
        try:
            assert run.go(session, resume=False) == state
        except LinkError as e:
            assert e.exit_code == 75 and board.clock() < 60
        else:
            return
        if not new_board:
            again = Session(board, DEADLINE_S, clock=board.clock)
            assert run.go(again, resume=True) == state, (run.way, run.at)
            return
    with ModelledBoard(library, folder) as board:
        assert run.go(Session(board, DEADLINE_S, clock=board.clock), resume=True) == state, (run.way, run.at)


def cuts(watched: Watched, step: int, start: int) -> list[tuple[Way, int]]:
    return [(way, at) for way in Way for at in range(start % step, watched.bytes[way], step)]


def test_a_peer_that_stops(modelled_library: Path, tmp_path: Path, undisturbed: tuple[int, bytes, Watched]) -> None:
    batch, state, watched = undisturbed
    run = CutRun(batch, tmp_path / "run.progress")
    places = random.Random(batch).sample(cuts(watched, 1, 0), 15)
    for run.way, run.at in places:
        cut_and_resume(modelled_library, tmp_path, run, state, new_board=False)
        assert run.source == "board"


@pytest.mark.parametrize("every", [0, 4])
def test_a_peer_that_stops_and_is_reset(
    modelled_library: Path, tmp_path: Path, undisturbed: tuple[int, bytes, Watched], every: int
) -> None:
    """What its STATE held is lost: the run goes on from the snapshot of every fourth sample, or from the start."""
    batch, state, watched = undisturbed
    run = CutRun(batch, tmp_path / "run.progress", every)
    for run.way, run.at in random.Random(batch + every).sample(cuts(watched, 1, 0), 8):
        cut_and_resume(modelled_library, tmp_path, run, state, new_board=True)
        assert run.source == "snapshot"


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("part", range(4))
def test_a_peer_that_stops_at_every_byte(
    modelled_library: Path, tmp_path: Path, undisturbed: tuple[int, bytes, Watched], part: int
) -> None:
    batch, state, watched = undisturbed
    run = CutRun(batch, tmp_path / "run.progress", 4 * (part % 2))
    for run.way, run.at in cuts(watched, 4, part):
        cut_and_resume(modelled_library, tmp_path, run, state, new_board=part >= 2)
