"""The images of the real boards: sizes, vectors, where things lie; and what of their drivers an emulator can run.

QEMU has no machine with one of these chips, but an STM32F405, whose USARTs are those of the STM32F446. It has no clock control, no
flash interface and no DWT: the image falls back to the internal oscillator, says that it has no timer, and its plan slot lies in RAM.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.builds import firmware_in
from helpers.cli import mcugrad
from helpers.tiny_plan import samples, tiny_plan
from mcugrad.board import Board, Firmware, Kind, find_board, load_boards, open_board
from mcugrad.board.build import image_bytes
from mcugrad.errors import UsageError
from mcugrad.link import Session, TickUnit
from mcugrad.link.transport import SocketTransport
from mcugrad.paths import root

pytestmark = pytest.mark.qemu

HARDWARE = [name for name, board in load_boards().items() if board.kind is Kind.HARDWARE]
MODEL = root() / "examples" / "watch" / "watch_base.tflite"
FLASH_BUDGET_BYTES = 66_000
STATIC_RAM_BUDGET_BYTES = 8_200
RAM_BASE = {"nucleo-h743zi": 0x2400_0000}
CHIP = {"nucleo-f446re": (128, 512), "stm32f746g-disco": (320, 1024), "nucleo-h743zi": (512, 2048), "nrf52840-dk": (256, 1024)}
"""KB of RAM and flash that the chips have."""


def test_the_four_are_there() -> None:
    assert set(HARDWARE) == set(CHIP)


@pytest.fixture(scope="module", params=HARDWARE)
def board(request: pytest.FixtureRequest) -> Board:
    return find_board(str(request.param))


@pytest.fixture(scope="module")
def firmware(board: Board) -> Firmware:
    return board.build()


def test_sizes(board: Board, firmware: Firmware) -> None:
    uses = ", ".join(f"{r.name} {r.used_bytes:,} of {r.total_bytes:,} bytes" for r in firmware.regions)
    print(f"\n{board.name}: {uses}")
    assert firmware.flash_bytes <= FLASH_BUDGET_BYTES <= board.firmware_bytes
    assert firmware.static_ram_bytes <= STATIC_RAM_BUDGET_BYTES
    ram, flash = CHIP[board.name]
    assert board.ram_bytes <= ram * 1024
    assert board.flash_bytes + 2 * board.checkpoint_bytes <= flash * 1024


def test_the_image_begins_with_vectors_that_belong_to_the_board(board: Board, firmware: Firmware) -> None:
    image = image_bytes(firmware)
    assert len(image) == firmware.flash_bytes
    assert board.flasher is not None
    stack, reset, *rest = struct.unpack("<16I", image[:64])
    ram = RAM_BASE.get(board.name, 0x2000_0000)
    assert stack == ram + board.stack_bytes
    for vector in (reset, *rest):
        assert vector & 1 and board.flasher.base <= vector < board.flasher.base + len(image)


def test_plan_slot_and_checkpoints_lie_in_whole_erase_blocks(board: Board, firmware: Firmware) -> None:
    listing = subprocess.run(["arm-none-eabi-nm", str(firmware.elf)], capture_output=True, text=True, check=True).stdout
    at = {name: int(value, 16) for value, _, name in (line.split() for line in listing.splitlines() if len(line.split()) == 3)}
    blocks = erase_blocks(board.name)
    for edge in ("board_slot_start", "board_slot_end", "board_checkpoints_start"):
        assert at[edge] in blocks, f"{edge} {at[edge]:#x}"
    assert at["board_slot_end"] - at["board_slot_start"] == board.slot_bytes
    assert at["board_checkpoints_start"] + board.checkpoint_bytes in blocks


def erase_blocks(name: str) -> set[int]:
    """Where erase blocks start and end, by the memory maps of the reference manuals."""
    if name == "nrf52840-dk":
        return {4096 * i for i in range(257)}
    if name == "nucleo-h743zi":
        return {0x0800_0000 + 131_072 * i for i in range(17)}
    unit = {"nucleo-f446re": 16_384, "stm32f746g-disco": 32_768}[name]
    return {0x0800_0000 + unit * i for i in (0, 1, 2, 3, 4, 8, 16, 24, 32)}


def test_a_plan_is_made_for_it(board: Board) -> None:
    found = mcugrad("plan", MODEL, "--board", board.name, "--train", "head,bias:2", "--json").result
    assert found["timing"] == "none"
    assert (found["ram_limit"], found["flash_limit"]) == (board.ram_bytes, board.flash_bytes)
    assert found["flash"]["firmware"] > 0 and found["ram"]["runtime"] > 0


def test_it_is_flashed_and_not_opened(board: Board) -> None:
    with pytest.raises(UsageError, match=f"mcugrad flash --board {board.name}"), open_board(board.name):
        pass


def test_a_model_too_large_for_the_smallest_is_refused_with_both_numbers() -> None:
    mcugrad("plan", MODEL, "--board", "nucleo-f446re", "--train", "all", "--sram", "7200").fails(8, "bytes of RAM", "--sram gives 7,200")
    mcugrad("plan", MODEL, "--board", "nucleo-f446re", "--sram", "131073").fails(2, "nucleo-f446re has 131,072 bytes of RAM")


# ---- the STM32F446 image on QEMU's STM32F405 ----------------------------------------------------------------------------

SLOT_IN_RAM = "-DCMAKE_EXE_LINKER_FLAGS=-Wl,--defsym=mg_slot_base=0x20010000"


@contextlib.contextmanager
def stm32f405(image: Path) -> Iterator[Session]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with contextlib.closing(SocketTransport(ours, "stm32f405")) as transport:
        with theirs:
            usart2 = ("-chardev", f"socket,id=usart2,fd={theirs.fileno()}", "-serial", "null", "-serial", "chardev:usart2")
            process = subprocess.Popen(
                ["qemu-system-arm", "-M", "netduinoplus2", "-nographic", "-monitor", "none", "-nodefaults", *usart2, "-kernel", str(image)],
                stdin=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
            )
        try:
            yield Session(transport, deadline_s=20.0)
        finally:
            process.kill()
            process.wait()


def trained(session: Session) -> tuple[list[float], bytes]:
    session.load_plan(tiny_plan(100))
    losses = [reply.loss for reply in session.train_stream(samples(20, 100), 0.01)]
    return losses, session.read_state()


def test_an_stm32f4_trains_and_says_that_it_has_no_timer() -> None:
    firmware = firmware_in("nucleo-f446re-in-ram", "nucleo-f446re", SLOT_IN_RAM)
    with stm32f405(firmware.elf) as session:
        caps = session.hello()
        found = trained(session)
        stats = session.stats()
    assert (caps.board, caps.tick_unit) == ("nucleo-f446re", TickUnit.NONE)  # where CYCCNT stands still: no figures, not 0 cycles
    assert caps.units(0) is None
    assert stats.rx_overruns == 0 and 0 < stats.stack_peak_bytes < stats.stack_reserved_bytes == find_board("nucleo-f446re").stack_bytes
    with open_board("host") as (_, line):
        native = Session(line, deadline_s=20.0)
        native.hello()
        assert trained(native) == found
