"""The drivers of the real boards against models of their chips (helpers/chip.py): clock, pins, line, flash, timer, caches, start."""

from __future__ import annotations

import random
import struct

import pytest

pytest.importorskip("unicorn", reason="needs the Python package unicorn")

from helpers.chip import Chip, Nvmc, Stm32Flash
from mcugrad.board import find_board

pytestmark = pytest.mark.qemu

RAM = {"nucleo-f446re": 0x2000_0000, "stm32f746g-disco": 0x2000_0000, "nucleo-h743zi": 0x2400_0000, "nrf52840-dk": 0x2000_0000}
STM32 = [name for name in RAM if name != "nrf52840-dk"]
USART = {"nucleo-f446re": 0x4000_4400, "stm32f746g-disco": 0x4001_1000, "nucleo-h743zi": 0x4000_4800}
IRQ = {"nucleo-f446re": 38, "stm32f746g-disco": 37, "nucleo-h743zi": 39, "nrf52840-dk": 2}
UNIT = {"nucleo-f446re": 16_384, "stm32f746g-disco": 32_768}
UARTE = 0x4000_2000
PLL_READY, RECEIVED, SENT, EMPTY, OVERRUN = 1 << 25, 1 << 5, 1 << 6, 1 << 7, 1 << 3


class Board:
    """A chip with its models. ``locks``: whether the PLL does."""

    def __init__(self, name: str, *, locks: bool = True) -> None:
        board = find_board(name)
        self.name, self.board = name, board
        self.chip = chip = Chip(board, board.build(), RAM[name])
        self.sent = bytearray()
        self.locks = locks
        self.status, self.received = SENT | EMPTY, 0
        if name == "nrf52840-dk":
            self.flash: Stm32Flash | Nvmc = Nvmc(chip)
            self._uarte()
            return
        if name == "nucleo-h743zi":
            sectors = [(0x0810_0000 + 131_072 * i, 131_072) for i in range(8)]
            self.flash = Stm32Flash(chip, 0x5200_2104, 0x5200_2110, 0x5200_210C, sectors, ccr=0x5200_2114)
        else:
            sizes = [UNIT[name]] * 4 + [4 * UNIT[name]] + [8 * UNIT[name]] * 3
            sectors = [(0x0800_0000 + sum(sizes[:i]), sizes[i]) for i in range(8)]
            self.flash = Stm32Flash(chip, 0x4002_3C04, 0x4002_3C0C, 0x4002_3C10, sectors)
        self._clock()
        self._usart()

    def _clock(self) -> None:
        cr, cfgr, shift = (0x5802_4400, 0x5802_4410, 3) if self.name == "nucleo-h743zi" else (0x4002_3800, 0x4002_3808, 2)
        registers = self.chip.registers
        self.chip.on_read[cr] = lambda: registers.get(cr, 0) | (PLL_READY if self.locks and registers.get(cr, 0) & 1 << 24 else 0)
        mask = (1 << shift) - 1
        self.chip.on_read[cfgr] = lambda: registers.get(cfgr, 0) | (registers.get(cfgr, 0) & mask) << shift

        if self.name == "nucleo-h743zi":  # the supply is chosen once, RM0433 section 6.4.1: until then no voltage is ready
            registers[0x5802_480C] = 6
            self.chip.on_read[0x5802_4804] = lambda: 1 << 13 if registers[0x5802_480C] & 7 == 2 else 0

    def _usart(self) -> None:
        base, first = USART[self.name], self.name == "nucleo-f446re"
        status, receive, send = (0, 4, 4) if first else (0x1C, 0x24, 0x28)
        self.chip.on_read[base + status] = lambda: self.status
        self.chip.on_read[base + receive] = self._take
        self.chip.on_write[base + send] = self._send
        if not first:
            self.chip.on_write[base + 0x20] = self._clear

    def _take(self) -> int:
        self.status &= ~RECEIVED
        if self.name == "nucleo-f446re":
            self.status &= ~OVERRUN
        return self.received

    def _clear(self, value: int) -> None:
        self.status &= ~(value & OVERRUN)

    def _send(self, value: int) -> None:
        assert self.status & EMPTY
        self.sent.append(value)

    def _uarte(self) -> None:
        registers = self.chip.registers

        def transmit(_value: int) -> None:
            at, n = registers[UARTE + 0x544], registers[UARTE + 0x548]
            assert RAM[self.name] <= at and at + n <= RAM[self.name] + self.board.ram_bytes, "EasyDMA reads RAM only"
            self.sent += self.chip.memory(at, n)
            registers[UARTE + 0x120] = 1

        self.chip.on_write[UARTE + 8] = transmit
        self.chip.on_read[0x4000_0100] = lambda: 1
        registers[0x1000_1208] = 0x5A

    def arrive(self, byte: int, *, overrun: bool = False) -> None:
        """One byte on the line, and its interrupt."""
        if self.name == "nrf52840-dk":
            registers = self.chip.registers
            self.chip.uc.mem_write(registers[UARTE + 0x534], bytes([byte]))
            registers[UARTE + 0x110] = 1
            registers[UARTE + 0x124], registers[UARTE + 0x480] = int(overrun), int(overrun)
        else:
            self.received = byte
            self.status |= RECEIVED | (OVERRUN if overrun else 0)
        self.chip.call("board_line_handler")

    def read(self, n: int) -> bytes:
        got = self.chip.call("mg_port_read", self.chip.put(bytes(n)), n)
        return self.chip.memory(self.chip.scratch, got)

    def lost(self) -> int:
        self.chip.call("mg_port_usage", self.chip.scratch)
        return struct.unpack("<IIII", self.chip.memory(self.chip.scratch, 16))[3]


@pytest.fixture(scope="module", params=list(RAM))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def board(name: str) -> Board:
    out = Board(name)
    out.chip.call("mg_port_init")
    return out


# ---- clock, pins, line ---------------------------------------------------------------------------------------------------


def pll_hz(board: Board) -> tuple[int, int]:
    """(core, the USART's clock) in Hz, decoded from the clock registers."""
    r = board.chip.registers
    if board.name == "nucleo-h743zi":
        m, n, p = r[0x5802_4428] >> 4 & 63, (r[0x5802_4430] & 511) + 1, (r[0x5802_4430] >> 9 & 127) + 1
        core = 64_000_000 // m * n // p
        assert 4_000_000 <= 64_000_000 / m <= 8_000_000 and r[0x5802_442C] >> 2 & 3 == 2 and p % 2 == 0
        assert 192e6 <= 64e6 / m * n <= 836e6
        assert r[0x5802_4418] & 15 == 8  # AXI at half
        assert r[0x5200_2000] == 0x12  # RM0433 table 17: VOS3, 90 to 135 MHz
        return core, core // 2 // {0: 1, 4: 2, 5: 4}[r[0x5802_441C] >> 4 & 7]
    config, buses = r[0x4002_3804], r[0x4002_3808]
    m, n, p = config & 63, config >> 6 & 511, 2 * ((config >> 16 & 3) + 1)
    assert config >> 22 & 1 == 0 and 16 / m == 2 and 100 <= 2 * n <= 432 and 2 * n / (config >> 24 & 15) <= 48
    divide = {0: 1, 4: 2, 5: 4, 6: 8, 7: 16}
    apb1, apb2 = 2_000_000 * n // p // divide[buses >> 10 & 7], 2_000_000 * n // p // divide[buses >> 13 & 7]
    assert apb1 <= 45_000_000 and apb2 <= 90_000_000
    return 2_000_000 * n // p, apb1 if board.name == "nucleo-f446re" else apb2


def brr(board: Board) -> int:
    return board.chip.registers[USART[board.name] + (8 if board.name == "nucleo-f446re" else 0xC)]


@pytest.mark.parametrize("stm32", STM32)
def test_the_clock_is_what_the_title_says_and_the_rate_is_right(stm32: str) -> None:
    board = Board(stm32)
    board.chip.call("mg_port_init")
    core, usart = pll_hz(board)
    assert f"{core // 1_000_000} MHz" in board.board.title
    assert abs(usart / brr(board) / 115_200 - 1) < 0.002
    if stm32 != "nucleo-h743zi":
        order = [at for at, _ in board.chip.log]
        assert board.chip.registers[0x4002_3C00] & 15 == 5
        assert order.index(0x4002_3C00) < len(order) - 1 - order[::-1].index(0x4002_3808), "wait states come before the clock"


@pytest.mark.parametrize("stm32", STM32)
def test_without_a_pll_the_rate_is_that_of_the_start_oscillator(stm32: str) -> None:
    board = Board(stm32, locks=False)
    board.chip.call("mg_port_init")
    start = 64_000_000 if stm32 == "nucleo-h743zi" else 16_000_000
    assert abs(start / brr(board) / 115_200 - 1) < 0.005
    assert board.chip.registers.get(0x5802_4410 if stm32 == "nucleo-h743zi" else 0x4002_3808, 0) & 7 == 0


PINS = {
    "nucleo-f446re": [(0x4002_0000, 2), (0x4002_0000, 3)],
    "stm32f746g-disco": [(0x4002_0000, 9), (0x4002_0400, 7)],
    "nucleo-h743zi": [(0x5802_0C00, 8), (0x5802_0C00, 9)],
}


@pytest.mark.parametrize("stm32", STM32)
def test_the_pins_are_the_usart_s(stm32: str) -> None:
    board = Board(stm32)
    before = {port: 0xA800_0000 for port, _ in PINS[stm32]}
    board.chip.registers.update(before)  # the debug pins, as after reset
    board.chip.call("mg_port_init")
    r = board.chip.registers
    for port, pin in PINS[stm32]:
        assert r[port] >> 2 * pin & 3 == 2 and r[port + 0x20 + 4 * (pin // 8)] >> 4 * (pin % 8) & 15 == 7
        assert r[port] & 0xFC00_0000 == 0xA800_0000
    clocks = {"nucleo-f446re": (0x4002_3840, 17), "stm32f746g-disco": (0x4002_3844, 4), "nucleo-h743zi": (0x5802_44E8, 18)}
    at, bit = clocks[stm32]
    assert r[at] >> bit & 1
    assert r[0xE000_E100 + 4 * (IRQ[stm32] // 32)] == 1 << IRQ[stm32] % 32


def test_an_nrf52840_sets_its_uarte_up_before_it_is_on() -> None:
    board = Board("nrf52840-dk")
    board.chip.call("mg_port_init")
    order = [at for at, _ in board.chip.log]
    r = board.chip.registers
    assert order.index(UARTE + 0x50C) < order.index(UARTE + 0x500) and order.index(UARTE + 0x514) < order.index(UARTE + 0x500)
    assert (r[UARTE + 0x50C], r[UARTE + 0x514], r[UARTE + 0x524]) == (6, 8, 0x01D6_0000)
    assert order.index(UARTE + 0x500) < order.index(UARTE) and r[UARTE + 0x538] == 1
    assert r[0x4000_0558] == 0x5A


def test_bytes_go_out(board: Board) -> None:
    data = bytes(range(256)) + b"end"
    board.chip.call("mg_port_write", board.chip.put(data), len(data))
    at = board.chip.symbols["reset_handler"] & ~1
    board.chip.call("mg_port_write", at, 100)  # out of flash
    assert bytes(board.sent) == data + board.chip.memory(at, 100)


def test_bytes_come_in_and_losses_are_counted(board: Board) -> None:
    for byte in b"hello":
        board.arrive(byte)
    assert board.read(3) == b"hel" and board.read(100) == b"lo" and board.read(100) == b""
    assert board.lost() == 0
    board.arrive(7, overrun=True)
    board.arrive(8)
    assert board.read(10) == b"\x07\x08" and board.lost() == 1


def test_a_full_ring_loses_the_newest_and_counts_them(board: Board) -> None:
    room = board.board.rx_ring_bytes - 1
    for i in range(room + 3):
        board.arrive(i & 0xFF)
    assert board.lost() == 3
    assert board.read(room + 3) == bytes(i & 0xFF for i in range(room))


RATES = (9_600, 115_200, 230_400, 460_800, 921_600, 1_000_000)


def test_rates_are_right_or_refused(board: Board) -> None:
    for rate in RATES:
        taken = board.chip.call("mg_port_baud", rate) & 0xFF
        if board.name == "nrf52840-dk":
            assert taken == (rate >= 115_200)
            continue
        _, clock = pll_hz(board)
        assert taken == 1 and abs(clock / brr(board) / rate - 1) <= 0.02
    if board.name != "nrf52840-dk":
        kept = brr(board)
        for rate in (100_000_000, 3):
            assert board.chip.call("mg_port_baud", rate) & 0xFF == 0
            assert brr(board) == kept


# ---- flash ---------------------------------------------------------------------------------------------------------------


def test_a_plan_is_written_and_nothing_beside_it(board: Board) -> None:
    chip, slot = board.chip, board.chip.symbols["board_slot_start"]
    chip.uc.mem_write(slot, bytes(range(256)) * 64)
    firmware = chip.memory(chip.flash_base, board.board.firmware_bytes)
    plan = random.Random(1).randbytes(32 * 131 + 5)
    assert chip.signed("mg_port_slot_erase", len(plan)) == 0
    assert chip.memory(slot, len(plan)) == b"\xff" * len(plan)
    for at in range(0, len(plan), 32 * 17):
        part = plan[at : at + 32 * 17]
        assert chip.signed("mg_port_slot_write", at, chip.put(part), len(part)) == 0
    assert chip.memory(slot, len(plan)) == plan
    assert chip.memory(slot + len(plan), 64) == b"\xff" * 64
    assert chip.memory(chip.flash_base, board.board.firmware_bytes) == firmware
    assert chip.faults == []


def test_the_whole_slot_is_erased(board: Board) -> None:
    chip, slot = board.chip, board.chip.symbols["board_slot_start"]
    end = chip.symbols["board_slot_end"]
    chip.uc.mem_write(slot - 4, b"kept")
    chip.uc.mem_write(slot, b"\x00" * (end - slot))
    chip.uc.mem_write(end, b"kept") if end < chip.flash_base + 0x20_0000 else None
    assert chip.signed("mg_port_slot_erase", end - slot) == 0
    assert chip.memory(slot, end - slot) == b"\xff" * (end - slot)
    assert chip.memory(slot - 4, 4) == b"kept" and (end >= chip.flash_base + 0x20_0000 or chip.memory(end, 4) == b"kept")
    assert chip.faults == []


@pytest.mark.parametrize("stm32", STM32)
def test_a_flash_that_fails_says_so(stm32: str) -> None:
    board = Board(stm32)
    assert isinstance(board.flash, Stm32Flash)
    board.flash.fail = 1 << 17 if board.flash.wide else 1 << 4  # write protected
    chip = board.chip
    assert chip.signed("mg_port_slot_erase", 100) < 0
    assert chip.signed("mg_port_slot_write", 0, chip.put(bytes(64)), 64) < 0
    board.flash.fail = 0
    assert chip.signed("mg_port_slot_erase", 100) == 0, "an old error is cleared first"


def test_checkpoints_have_blocks_of_their_own(board: Board) -> None:
    chip = board.chip
    chip.call("mg_port_store", chip.scratch)
    size, _user, erase, program, read = struct.unpack("<5I", chip.memory(chip.scratch, 20))
    assert size == board.board.checkpoint_bytes
    if size == 0:
        return
    slot, first = chip.symbols["board_slot_end"], chip.symbols["board_checkpoints_start"]
    chip.uc.mem_write(slot - 4, b"kept")
    data = random.Random(2).randbytes(320)
    for n in (0, 1):
        assert chip.signed(erase, 0, n) == 0
        assert chip.signed(program, 0, n, 64, chip.put(data), len(data)) == 0
        assert chip.memory(first + n * size + 64, len(data)) == data
        to = chip.put(bytes(400))
        assert chip.signed(read, 0, n, 64, to, len(data)) == 0
        assert chip.memory(to, len(data)) == data
    assert chip.signed(erase, 0, 0) == 0
    assert chip.memory(first, size) == b"\xff" * size and chip.memory(first + size + 64, len(data)) == data
    assert chip.memory(slot - 4, 4) == b"kept" and chip.faults == []


def test_a_torn_flash_word_of_an_h7_is_seen() -> None:
    board = Board("nucleo-h743zi")
    chip = board.chip
    assert isinstance(board.flash, Stm32Flash)
    status = board.flash.status
    chip.on_write[0x5200_2114] = lambda _value: setattr(status, "errors", 1 << 26)  # comes back with the next read
    chip.call("mg_port_store", chip.scratch)
    read = struct.unpack("<5I", chip.memory(chip.scratch, 20))[4]
    assert chip.signed(read, 0, 0, 0, chip.scratch, 64) < 0
    ccr = chip.written(0xE000_ED14)
    assert ccr[-2] >> 8 & 1 == 1 and ccr[-1] >> 8 & 1 == 0, "bus faults are ignored for the read only"


# ---- timer, caches, start ------------------------------------------------------------------------------------------------


def test_the_stopwatch_is_wider_than_the_counter(board: Board) -> None:
    chip = board.chip
    now = 0xFFFF_FF00
    chip.on_read[0xE000_1004] = lambda: now & 0xFFFF_FFFF
    chip.call("mg_port_timer_start")
    assert chip.registers[0xE000_EDFC] >> 24 & 1 and chip.registers[0xE000_1000] & 1 and chip.registers[0xE000_E010] == 7
    begin = now
    for _ in range(300):
        now += 1 << 24
        chip.call("board_systick_handler")
    now += 12_345
    assert chip.wide("mg_port_timer_stop") == now - begin > 1 << 32
    assert chip.registers[0xE000_E010] == 0


@pytest.mark.parametrize("m7", ["stm32f746g-disco", "nucleo-h743zi"])
def test_every_line_of_the_data_cache_is_invalidated_before_it_is_on(m7: str) -> None:
    board = Board(m7)
    sets, ways = (64, 2) if m7 == "stm32f746g-disco" else (128, 4)  # 4 KB and 16 KB
    board.chip.registers[0xE000_ED80] = (sets - 1) << 13 | (ways - 1) << 3 | 1
    board.chip.call("mg_port_init")
    lines = board.chip.written(0xE000_EF60)
    shift = 32 - (ways - 1).bit_length()
    assert set(lines) == {way << shift | line << 5 for way in range(ways) for line in range(sets)}
    order = [at for at, _ in board.chip.log]
    assert board.chip.registers[0xE000_ED14] >> 16 & 3 == 3
    assert order.index(0xE000_EF50) < order.index(0xE000_ED14) and max(i for i, a in enumerate(order) if a == 0xE000_EF60) < order.index(
        0xE000_ED14
    )


@pytest.mark.parametrize("m7", ["stm32f746g-disco", "nucleo-h743zi"])
def test_the_data_cache_forgets_what_was_erased_or_programmed(m7: str) -> None:
    board = Board(m7)
    chip, slot = board.chip, board.chip.symbols["board_slot_start"]
    chip.call("mg_port_init")
    assert chip.signed("mg_port_slot_erase", 100) == 0
    assert set(chip.written(0xE000_EF5C)) == {slot + 32 * i for i in range(4)}
    chip.log.clear()
    assert chip.signed("mg_port_slot_write", 64, chip.put(bytes(40)), 40) == 0
    assert set(chip.written(0xE000_EF5C)) == {slot + 64, slot + 96}


def test_from_reset_to_main(name: str) -> None:
    board = Board(name)
    chip = board.chip
    ram = chip.ram_base
    chip.uc.mem_write(ram, b"\x11" * board.board.ram_bytes)
    chip.reset()
    bss, end = chip.symbols["board_bss_start"], chip.symbols["board_bss_end"]
    assert chip.memory(bss, end - bss) == bytes(end - bss)
    bottom = chip.symbols["board_stack_bottom"]
    painted = board.board.stack_bytes - 128
    assert chip.memory(bottom, painted) == b"\xa5" * painted
    assert chip.registers[0xE000_ED88] >> 20 & 15 == 15 and chip.registers[0xE000_ED08] == chip.flash_base
