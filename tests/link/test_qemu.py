"""The firmware on emulated Cortex-M4, M3, M7, M33 and M55: the same bytes as on the host board, the same instructions on every run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from helpers.tiny_plan import samples, tiny_plan
from helpers.tiny_regression import pairs, tiny_regression
from mcugrad.board import Firmware, find_board, open_board
from mcugrad.board import open as board_open
from mcugrad.errors import UnavailableError
from mcugrad.link import Caps, Session, Stats
from mcugrad.link.frame import Frame, encode
from mcugrad.link.protocol import Command

pytestmark = pytest.mark.qemu

NAMES = ("qemu-mps2-an386", "qemu-mps2-an385", "qemu-mps2-an500", "qemu-mps2-an505", "qemu-mps3-an547")
INPUTS = 100
SAMPLES = 20
SKIP = 0.01


@dataclass(frozen=True)
class Run:
    """What one board did with the same plan and samples."""

    board: str
    firmware: Firmware
    caps: Caps
    losses: list[float]
    ticks: list[int]
    state: bytes
    stats: Stats


def run(board: str, firmware: Firmware) -> Run:
    with open_board(board, firmware) as (_, line):
        session = Session(line, deadline_s=20.0)
        caps = session.hello()
        session.load_plan(tiny_plan(INPUTS))
        replies = list(session.train_stream(samples(SAMPLES, INPUTS), SKIP))
        state, stats = session.read_state(), session.stats()
        session.reset()
        return Run(board, firmware, caps, [r.loss for r in replies], list(alone(session)), state, stats)


def alone(session: Session) -> Iterator[int]:
    """Ticks of the same steps, each while the line is held: what travels during a stream's steps costs interrupts."""
    for data, label, lr in samples(SAMPLES, INPUTS):
        session.sample(data)
        yield session.train(label, lr, SKIP).ticks


@pytest.fixture(scope="module", params=NAMES)
def emulated(request: pytest.FixtureRequest) -> Run:
    name = str(request.param)
    return run(name, find_board(name).build())


def test_state_equals_the_host_board_s(emulated: Run, host_firmware: Firmware) -> None:
    native = run("host", host_firmware)
    assert emulated.losses == native.losses
    assert emulated.state == native.state


def test_ticks_move_and_repeat(emulated: Run) -> None:
    assert min(emulated.ticks) > 0
    board = find_board(emulated.board)
    assert emulated.caps.units(emulated.ticks[0]) == emulated.ticks[0] * board.tick_mul // board.tick_div
    assert run(emulated.board, emulated.firmware).ticks == emulated.ticks


def test_sizes_are_those_of_board_toml(emulated: Run) -> None:
    board = find_board(emulated.board)
    assert emulated.caps.board == emulated.board
    assert emulated.caps.slot_bytes == board.slot_bytes
    assert emulated.caps.pool_bytes == board.ram_bytes - board.stack_bytes - emulated.firmware.static_ram_bytes
    assert emulated.firmware.flash_bytes <= board.firmware_bytes


def test_two_full_frames_fit_the_window(emulated: Run) -> None:
    frame = encode(Frame(Command.SAMPLE, 1, bytes([1]) * emulated.caps.max_body_bytes))
    assert 2 * len(frame) <= emulated.caps.rx_window_bytes <= find_board(emulated.board).rx_ring_bytes - 128


def test_memory_is_measured(emulated: Run) -> None:
    stats = emulated.stats
    assert 64 < stats.stack_peak_bytes < stats.stack_reserved_bytes * 4 // 5
    assert stats.static_ram_bytes == emulated.firmware.static_ram_bytes
    assert stats.firmware_bytes == pytest.approx(emulated.firmware.flash_bytes, abs=64)
    assert stats.arena_touched_bytes == 52
    assert (stats.rx_overruns, stats.damaged_frames) == (0, 0)


def test_regression_is_the_same_with_and_without_an_fpu(emulated: Run, host_firmware: Firmware) -> None:
    def train(board: str, firmware: Firmware) -> tuple[list[float], bytes]:
        with open_board(board, firmware) as (_, line):
            session = Session(line, deadline_s=20.0)
            session.hello()
            session.load_plan(tiny_regression())
            losses = [r.loss for r in session.train_stream([(x + t, 0, 0.05) for x, t in pairs(SAMPLES)], 0.0)]
            return losses, session.read_state()

    assert train(emulated.board, emulated.firmware) == train("host", host_firmware)


def test_an_emulator_that_does_not_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    name = NAMES[0]
    firmware = find_board(name).build()
    board = replace(find_board(name), qemu_machine="mps9")
    monkeypatch.setattr(board_open, "find_board", lambda _name: board)
    refused = pytest.raises(UnavailableError, match=r"qemu-system-arm ended with 1: .*unsupported machine type")
    with refused, open_board(name, firmware) as (_, line):
        Session(line, deadline_s=5.0).hello()
