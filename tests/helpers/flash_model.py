"""Two checkpoint slots of flash, as mg_save sees them through struct mg_store, whose power can be cut at any operation.

Operations are counted over the life of the model: an erase is one, each program unit is one. At operation ``cut_at`` the power goes: that
operation leaves torn content, and every later call fails until ``power_on``.
"""

from __future__ import annotations

import ctypes as c
import random
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum

from mcugrad.native import NativeMachine, library

ALIGN = 32
SLOTS = 2
BLANK = 0xFF
MG_ERR_FLASH, MG_ERR_EMPTY = -19, -20


class Torn(Enum):
    """What an operation leaves that was cut: nothing done, all done, any subset of its bits done, or what ECC refuses to read."""

    NOT_BEGUN = "not begun"
    ALL_BUT_DONE = "all but done"
    ANY_BITS = "any bits"
    UNREADABLE = "unreadable"


_Erase = c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_uint32)
_Program = c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_uint32, c.c_uint32, c.c_void_p, c.c_uint32)
_Read = c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_uint32, c.c_uint32, c.c_void_p, c.c_uint32)


class _Store(c.Structure):
    """struct mg_store of mcugrad.h."""

    _fields_ = (("slot_bytes", c.c_uint32), ("user", c.c_void_p), ("erase", _Erase), ("program", _Program), ("read", _Read))


class Flash:
    """``slots``: the content. ``unit``: bytes of one program operation. Misuse by the code under test is an AssertionError at ``check``."""

    def __init__(self, slot_bytes: int = 256, unit: int = 4, seed: int = 1) -> None:
        self.rng = random.Random(seed)
        self.unit = unit
        self.slots = [bytearray(self.rng.randbytes(slot_bytes)) for _ in range(SLOTS)]
        self.programmed: list[set[int]] = [set(range(0, slot_bytes, unit)) for _ in range(SLOTS)]
        self.unreadable: set[tuple[int, int]] = set()
        self.operations = 0
        self.reads = 0
        self.cut_at = -1
        self.torn = Torn.ANY_BITS
        self.off = False
        self.misuse: list[str] = []
        self._calls = _Erase(self._erase), _Program(self._program), _Read(self._read)
        self.store = _Store(slot_bytes, None, *self._calls)

    # ---- what a test does ----------------------------------------------------------------------------------------------

    def cut(self, operations: int, torn: Torn) -> None:
        """The power goes at the operation that comes after so many more."""
        self.cut_at, self.torn = self.operations + operations, torn

    def power_on(self) -> None:
        self.off, self.cut_at = False, -1

    def check(self) -> None:
        """Require that all calls kept the contract of struct mg_store."""
        assert not self.misuse, self.misuse

    @contextmanager
    def stuck_bit(self, slot: int, at: int) -> Iterator[None]:
        """A worn cell: the lowest bit of one byte stays 0, whatever is erased."""
        erase = self._erase_bytes

        def worn(k: int) -> None:
            erase(k)
            if k == slot:
                self.slots[k][at] &= 0xFE

        self._erase_bytes = worn  # type: ignore[method-assign]
        yield
        self._erase_bytes = erase  # type: ignore[method-assign]

    def save(self, net: NativeMachine) -> int:
        """mg_save: the sequence number, or the negative error."""
        sequence = c.c_uint32()
        return int(library().mg_save(net._net, c.byref(self.store), c.byref(sequence))) or sequence.value

    def restore(self, net: NativeMachine) -> int:
        """mg_restore likewise."""
        sequence = c.c_uint32()
        return int(library().mg_restore(net._net, c.byref(self.store), c.byref(sequence))) or sequence.value

    # ---- what the code under test calls --------------------------------------------------------------------------------

    def _expect(self, holds: bool, what: str) -> None:
        if not holds:
            self.misuse.append(what)

    def _goes_now(self) -> bool:
        self.off = self.off or self.operations == self.cut_at
        self.operations += 1
        return self.off

    def _erase(self, _user: int | None, slot: int) -> int:
        if self.off:
            return -1
        self._expect(slot < SLOTS, f"erase of slot {slot}")
        if not self._goes_now() or self.torn is Torn.ALL_BUT_DONE:
            self._erase_bytes(slot)
        elif self.torn is not Torn.NOT_BEGUN:
            old = self.slots[slot]
            self.slots[slot][:] = self.rng.choice([self.rng.randbytes(len(old)), bytes(b | self.rng.randrange(256) for b in old)])
            if self.torn is Torn.UNREADABLE:
                self.unreadable.add((slot, self.rng.randrange(len(old)) // self.unit))
        return -1 if self.off else 0

    def _erase_bytes(self, slot: int) -> None:
        self.slots[slot][:] = bytes((BLANK,)) * len(self.slots[slot])
        self.programmed[slot].clear()
        self.unreadable = {(s, at) for s, at in self.unreadable if s != slot}

    def _program(self, _user: int | None, slot: int, offset: int, address: int, n: int) -> int:
        if self.off:
            return -1
        self._expect(slot < SLOTS and offset % ALIGN == n % ALIGN == 0 and n > 0, f"program {n} at {offset} of slot {slot}")
        self._expect(offset + n <= len(self.slots[slot]), f"program up to {offset + n}")
        self._expect(address % 4 == 0, f"source at {address:#x}")
        data = c.string_at(address, n)
        for at in range(0, n, self.unit):
            if self._program_unit(slot, offset + at, data[at : at + self.unit]):
                return -1
        return 0

    def _program_unit(self, slot: int, at: int, new: bytes) -> bool:
        self._expect(at not in self.programmed[slot], f"unit at {at} of slot {slot} is programmed twice")
        self.programmed[slot].add(at)
        off = self._goes_now()
        missed = [0] * self.unit
        if off and self.torn is Torn.NOT_BEGUN:
            missed = [BLANK] * self.unit
        elif off and self.torn is not Torn.ALL_BUT_DONE:
            missed = [self.rng.choice((0, BLANK, self.rng.randrange(256))) for _ in new]
        if off and self.torn is Torn.UNREADABLE:
            self.unreadable.add((slot, at // self.unit))
        for k, (byte, mask) in enumerate(zip(new, missed, strict=True)):
            self.slots[slot][at + k] &= byte | mask
        return off

    def _read(self, _user: int | None, slot: int, offset: int, address: int, n: int) -> int:
        if self.off:
            return -1
        self.reads += 1
        self._expect(slot < SLOTS and offset + n <= len(self.slots[slot]), f"read {n} at {offset} of slot {slot}")
        units = range(offset // self.unit, (offset + n + self.unit - 1) // self.unit)
        if any((slot, unit) in self.unreadable for unit in units):
            return -2
        c.memmove(address, bytes(self.slots[slot][offset : offset + n]), n)
        return 0
