"""A chip that runs one function of a firmware image: the core by Unicorn, its registers and its flash by models in Python.

The models note every access that a chip would punish in ``faults``: a write to locked flash, to a word that is not erased, of a wrong
width. They were made by the same hand as the drivers, so that both may share a mistake about an address or a bit. There are no
interrupts: a test calls the handler.
"""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import unicorn
from unicorn import arm_const

from mcugrad.board import Board, Firmware
from mcugrad.board.build import image_bytes

STOP = 0x3100_0000
SCRATCH_BYTES = 65_536
KEYS = [0x4567_0123, 0xCDEF_89AB]
BUSY_READS = 3

Read = Callable[[], int]
Write = Callable[[int], None]

CORES = {"cortex-m4": arm_const.UC_CPU_ARM_CORTEX_M4, "cortex-m7": arm_const.UC_CPU_ARM_CORTEX_M7}


class Chip:
    """Memory, registers that keep what is written unless ``on_read`` or ``on_write`` has them, and the log of writes."""

    def __init__(self, board: Board, firmware: Firmware, ram: int) -> None:
        assert board.flasher is not None
        self.uc = unicorn.Uc(unicorn.UC_ARCH_ARM, unicorn.UC_MODE_THUMB | unicorn.UC_MODE_MCLASS)
        self.uc.ctl_set_cpu_model(CORES[board.core])
        self.flash_base, self.ram_base, self.ram_bytes = board.flasher.base, ram, board.ram_bytes
        self.symbols = _symbols(firmware.elf)
        self.registers: dict[int, int] = {}
        self.on_read: dict[int, Read] = {}
        self.on_write: dict[int, Write] = {}
        self.log: list[tuple[int, int]] = []
        self.faults: list[str] = []
        self.programming = False
        self.uc.mem_map(self.flash_base, 0x20_0000)
        self.uc.mem_write(self.flash_base, image_bytes(firmware))
        self.uc.mem_map(ram, board.ram_bytes)
        self.scratch = 0x3000_0000
        self.uc.mem_map(self.scratch, SCRATCH_BYTES)
        self.uc.mem_map(STOP, 0x1000)
        for base, size in ((0x1000_0000, 0x1_0000), (0x4000_0000, 0x2000_0000), (0xE000_0000, 0x10_0000)):
            self.uc.mmio_map(base, size, self._read, base, self._write, base)
        self.uc.hook_add(unicorn.UC_HOOK_MEM_WRITE, self._flash_write, begin=self.flash_base, end=self.flash_base + 0x1F_FFFF)

    def _read(self, _uc: object, offset: int, _size: int, base: int) -> int:
        at = base + offset
        return self.on_read[at]() if at in self.on_read else self.registers.get(at, 0)

    def _write(self, _uc: object, offset: int, _size: int, value: int, base: int) -> None:
        at = base + offset
        self.log.append((at, value))
        if at in self.on_write:
            self.on_write[at](value)
        else:
            self.registers[at] = value

    def _flash_write(self, _uc: object, _access: int, at: int, size: int, value: int, _data: object) -> None:
        if not self.programming:
            self.faults.append(f"write to {at:#x}: the flash is not being programmed")
        if size != 4 or at % 4:
            self.faults.append(f"write of {size} bytes to {at:#x}")
        if self.memory(at, size) != b"\xff" * size:
            self.faults.append(f"{at:#x} is not erased")
        self.programmed(at)

    def programmed(self, at: int) -> None:
        """A word of flash is written; for models."""

    def erased(self, at: int, size: int) -> None:
        self.uc.mem_write(at, b"\xff" * size)

    def memory(self, at: int, n: int) -> bytes:
        return bytes(self.uc.mem_read(at, n))

    def put(self, data: bytes) -> int:
        """``data`` in memory that is neither the firmware's nor flash; its address."""
        self.uc.mem_write(self.scratch, data)
        return self.scratch

    def call(self, name: str | int, *arguments: int) -> int:
        """r0 of a function that returns: its name, or its address."""
        at = self.symbols[name] if isinstance(name, str) else name
        self.uc.reg_write(arm_const.UC_ARM_REG_SP, self.symbols["board_stack_top"])
        self.uc.reg_write(arm_const.UC_ARM_REG_LR, STOP | 1)
        for register, value in zip((arm_const.UC_ARM_REG_R0, arm_const.UC_ARM_REG_R1, arm_const.UC_ARM_REG_R2), arguments, strict=False):
            self.uc.reg_write(register, value)
        if len(arguments) > 3:
            self.uc.reg_write(arm_const.UC_ARM_REG_R3, arguments[3])
        for n, value in enumerate(arguments[4:]):
            self.uc.mem_write(self.symbols["board_stack_top"] - 64 + 4 * n, struct.pack("<I", value))
        if len(arguments) > 4:
            self.uc.reg_write(arm_const.UC_ARM_REG_SP, self.symbols["board_stack_top"] - 64)
        self.uc.emu_start(at | 1, STOP, timeout=20_000_000)
        assert self.uc.reg_read(arm_const.UC_ARM_REG_PC) == STOP, f"{name} does not return"
        return int(self.uc.reg_read(arm_const.UC_ARM_REG_R0))

    def wide(self, name: str) -> int:
        """r1:r0 of a function without arguments."""
        low = self.call(name)
        return int(self.uc.reg_read(arm_const.UC_ARM_REG_R1)) << 32 | low

    def reset(self) -> None:
        """From the vectors to main, which is not entered."""
        stack, reset = struct.unpack("<II", self.memory(self.flash_base, 8))
        end = self.symbols["main"] & ~1
        self.uc.reg_write(arm_const.UC_ARM_REG_SP, stack)
        self.uc.emu_start(reset, end, timeout=20_000_000)
        assert self.uc.reg_read(arm_const.UC_ARM_REG_PC) == end

    def signed(self, name: str | int, *arguments: int) -> int:
        value = self.call(name, *arguments)
        return value - (1 << 32) if value >> 31 else value

    def written(self, at: int) -> list[int]:
        """The values written to a register, in order."""
        return [value for where, value in self.log if where == at]


def _symbols(elf: Path) -> dict[str, int]:
    listing = subprocess.run(["arm-none-eabi-nm", str(elf)], capture_output=True, text=True, check=True).stdout
    return {line.split()[2]: int(line.split()[0], 16) for line in listing.splitlines() if len(line.split()) == 3}


class Busy:
    """A status that reads busy for a while after ``start``."""

    def __init__(self, busy: int) -> None:
        self.busy, self.left, self.errors = busy, 0, 0

    def start(self) -> None:
        self.left = BUSY_READS

    def read(self) -> int:
        self.left = max(self.left - 1, 0)
        return (self.busy if self.left else 0) | self.errors


class Stm32Flash:
    """The flash interface of an STM32F4 or F7 (RM0390 section 3, RM0385 section 3), or one bank of an H7 (RM0433 section 4)."""

    def __init__(self, chip: Chip, keyr: int, sr: int, cr: int, sectors: list[tuple[int, int]], *, ccr: int = 0) -> None:
        self.chip, self.sectors, self.wide = chip, sectors, ccr != 0
        self.keys: list[int] = []
        self.locked, self.fail = True, 0
        self.status = Busy(1 << 2 if self.wide else 1 << 16)
        self.row: set[int] = set()
        chip.on_write[keyr], chip.on_write[cr] = self.key, self.control
        chip.on_read[sr], chip.on_read[cr] = self.status.read, lambda: self.value
        chip.on_write[ccr or sr] = self.clear
        chip.programmed = self.word  # type: ignore[method-assign]
        self.value = 1 if self.wide else 1 << 31

    def key(self, value: int) -> None:
        self.keys = [*self.keys, value][-2:]
        if self.keys == KEYS:
            self.locked = False

    def clear(self, value: int) -> None:
        self.status.errors &= ~value

    def control(self, value: int) -> None:
        lock, start = (1, 1 << 7) if self.wide else (1 << 31, 1 << 16)
        program, erase, number = (2, 4, value >> 8 & 7) if self.wide else (1, 2, value >> 3 & 15)
        if value & lock:
            self.locked, self.value, self.chip.programming = True, value, False
            if self.row:
                self.chip.faults.append("a flash word is not complete")
            return
        if self.locked:
            self.chip.faults.append("control register written while it is locked")
            return
        if self.status.left:
            self.chip.faults.append("control register written while the flash works")
        width = value >> 4 & 3 if self.wide else value >> 8 & 3
        if width != 2:
            self.chip.faults.append(f"parallelism {width}")
        self.value = value & ~start
        self.chip.programming = bool(value & program)
        if value & erase and value & start:
            at, size = self.sectors[number]
            self.chip.erased(at, size)
            self.finish()

    def word(self, at: int) -> None:
        if self.status.left:
            self.chip.faults.append(f"word {at:#x} while the flash works")
        if self.wide:
            self.row.add(at)
            if {a // 32 for a in self.row} != {at // 32}:
                self.chip.faults.append("words of two flash words")
            if len(self.row) < 8:
                return
            self.row.clear()
        self.finish()

    def finish(self) -> None:
        self.status.start()
        self.status.errors |= self.fail


class Nvmc:
    """The flash of an nRF52840: product specification, chapter NVMC."""

    def __init__(self, chip: Chip) -> None:
        self.chip = chip
        self.left = self.config = 0
        chip.on_write[0x4001_E504], chip.on_write[0x4001_E508] = self.configure, self.erase
        chip.on_read[0x4001_E400] = self.ready
        chip.programmed = self.word  # type: ignore[method-assign]

    def configure(self, value: int) -> None:
        if self.left:
            self.chip.faults.append("CONFIG while the flash works")
        self.config, self.chip.programming = value, value == 1

    def erase(self, at: int) -> None:
        if self.config != 2 or at % 4096 or self.left:
            self.chip.faults.append(f"erase of {at:#x} in mode {self.config}")
        self.chip.erased(at, 4096)
        self.left = BUSY_READS

    def word(self, at: int) -> None:
        if self.left:
            self.chip.faults.append(f"word {at:#x} while the flash works")
        self.left = BUSY_READS

    def ready(self) -> int:
        self.left = max(self.left - 1, 0)
        return int(self.left == 0)
