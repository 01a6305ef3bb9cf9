"""mg_save and mg_restore on a model of flash: power cuts at every operation, worn cells, hostile slots."""

from __future__ import annotations

import ctypes as c
import itertools
import random
import struct
import zlib

import pytest

from helpers.flash_model import MG_ERR_EMPTY, MG_ERR_FLASH, Flash, Torn
from helpers.tiny_plan import tiny_plan
from mcugrad.native import NativeMachine, library
from mcugrad.plan import decode

PLAN = tiny_plan()
HEAD = decode(PLAN).header
MAGIC, STATE_AT = 0x4B43474D, 32
MG_ERR_SIZE, MG_ERR_STORE, MG_ERR_OTHER = -3, -18, -21


@pytest.fixture
def net() -> NativeMachine:
    return NativeMachine(PLAN)


def fault(net: NativeMachine) -> tuple[int, int]:
    return net._context.fault.value, net._context.fault.limit


def some_state(net: NativeMachine, seed: int) -> bytes:
    """STATE of another moment."""
    net.state = random.Random(seed).randbytes(len(net.state))
    return net.state


def head(state: bytes, sequence: int, **other: int) -> bytes:
    """A whole checkpoint as SPEC.md section 3.8 lays it out, with a right CRC."""
    fields = {
        "magic": MAGIC,
        "version": 1,
        "head_bytes": 32,
        "plan_crc": HEAD.plan_crc,
        "model_hash": 0,
        "state_bytes": len(state),
        "zero": 0,
    }
    f = fields | other
    first = struct.pack("<IHHIIIII", *(f[k] for k in ("magic", "version", "head_bytes")), sequence, *list(f.values())[3:])
    return first + struct.pack("<I", zlib.crc32(first + state)) + state


def put(flash: Flash, slot: int, content: bytes) -> None:
    flash.slots[slot][: len(content)] = content


# ---- without a cut ------------------------------------------------------------------------------------------------------


def test_what_was_saved_is_restored_and_the_newest_wins(net: NativeMachine) -> None:
    flash = Flash()
    assert flash.restore(net) == MG_ERR_EMPTY
    for k in range(1, 6):
        state = some_state(net, k)
        assert flash.save(net) == k
        some_state(net, 100)
        assert flash.restore(net) == k
        assert net.state == state
    flash.check()


@pytest.mark.parametrize("inputs", range(1, 18))
def test_every_length_of_the_last_unit(inputs: int) -> None:
    net = NativeMachine(tiny_plan(inputs=inputs))
    flash = Flash(unit=32)
    state = some_state(net, inputs)
    assert flash.save(net) == 1
    some_state(net, 0)
    assert (flash.restore(net), net.state == state) == (1, True)
    flash.check()


def test_the_bytes_are_those_of_the_specification(net: NativeMachine) -> None:
    flash = Flash()
    state = some_state(net, 3)
    assert flash.save(net) == 1
    assert bytes(flash.slots[0][: STATE_AT + len(state)]) == head(state, 1)


@pytest.mark.parametrize(
    ("first", "second", "newest"),
    [(1, 2, 1), (2, 1, 0), (0xFFFFFFFF, 0, 1), (0, 0xFFFFFFFF, 0), (5, 0x80000004, 1), (5, 0x80000005, 0), (7, 7, 0)],
)
def test_the_sequence_wraps(net: NativeMachine, first: int, second: int, newest: int) -> None:
    flash = Flash()
    states = [some_state(net, k) for k in range(2)]
    put(flash, 0, head(states[0], first))
    put(flash, 1, head(states[1], second))
    some_state(net, 9)
    flash.restore(net)
    assert net.state == states[newest]
    assert flash.save(net) == ((first, second)[newest] + 1) & 0xFFFFFFFF
    assert bytes(flash.slots[newest][: STATE_AT + len(states[0])]) == head(states[newest], (first, second)[newest])


# ---- what is refused ----------------------------------------------------------------------------------------------------


def test_another_plans_checkpoint_is_refused_with_both_hashes(net: NativeMachine) -> None:
    other = NativeMachine(tiny_plan(seed=2))
    flash = Flash()
    assert flash.save(other) == 1
    before = some_state(net, 4)
    assert flash.restore(net) == MG_ERR_OTHER
    assert fault(net) == (other.plan.header.plan_crc, HEAD.plan_crc)
    assert net.state == before
    assert flash.save(net) == 2
    assert flash.restore(net) == 2


def test_no_storage_and_too_little(net: NativeMachine) -> None:
    none, small = Flash(slot_bytes=0), Flash(slot_bytes=64)
    assert none.save(net) == none.restore(net) == MG_ERR_STORE
    assert small.save(net) == MG_ERR_STORE
    assert fault(net) == (32 + (len(net.state) + 31) // 32 * 32, 64)
    assert small.operations == 0


HOSTILE = {
    "magic": {"magic": MAGIC ^ 1},
    "version": {"version": 2},
    "head size": {"head_bytes": 36},
    "zero": {"zero": 1},
    "more than the slot": {"state_bytes": 256 - 31},
    "4 GB": {"state_bytes": 0xFFFFFFFF},
    "as far as the head wraps": {"state_bytes": 0xFFFFFFE0},
}


@pytest.mark.parametrize("fields", HOSTILE.values(), ids=HOSTILE)
def test_a_head_that_lies_is_no_checkpoint(net: NativeMachine, fields: dict[str, int]) -> None:
    flash = Flash()
    old = some_state(net, 1)
    put(flash, 0, head(old, 1))
    put(flash, 1, head(some_state(net, 2), 2, **fields))
    assert flash.restore(net) == 1
    assert net.state == old
    flash.check()


def test_another_size_of_state_under_the_same_hash(net: NativeMachine) -> None:
    flash = Flash()
    before = net.state
    put(flash, 0, head(bytes(len(before) + 4), 1))
    assert flash.restore(net) == MG_ERR_SIZE
    assert fault(net) == (len(before), len(before) + 4)
    put(flash, 0, head(b"", 1))
    assert flash.restore(net) == MG_ERR_SIZE
    assert net.state == before


@pytest.mark.parametrize("at", range(STATE_AT + 56))
def test_any_wrong_byte_is_seen(net: NativeMachine, at: int) -> None:
    flash = Flash()
    old = some_state(net, 1)
    assert (flash.save(net), len(old)) == (1, 56)
    some_state(net, 2)
    assert flash.save(net) == 2
    flash.slots[1][at] ^= 0x10
    assert (flash.restore(net), net.state == old) == (1, True)


@pytest.mark.parametrize("at", [0, 28, 31, 32, 60, 87])
def test_a_worn_cell_leaves_the_checkpoint_before(net: NativeMachine, at: int) -> None:
    flash = Flash()
    net.state = b"\xff" * len(net.state)
    assert flash.save(net) == 1
    old = net.state
    with flash.stuck_bit(1, at):
        code = flash.save(net)
    if code != 2:  # a bit that is 0 anyway does no harm
        assert code == MG_ERR_FLASH
        assert fault(net) == (0 if at < STATE_AT else STATE_AT, 1)
    assert at < STATE_AT or code == MG_ERR_FLASH
    some_state(net, 5)
    assert flash.restore(net) in (1, 2)
    assert net.state == old


def test_slots_that_change_between_two_reads(net: NativeMachine) -> None:
    flash = Flash()
    some_state(net, 1)
    assert flash.save(net) == 1
    start = flash.reads
    assert flash.restore(net) == 1
    last = flash.reads - start
    read = flash._read

    def other_at_last(user: int | None, slot: int, offset: int, address: int, n: int) -> int:
        if flash.reads - start == last - 1:
            flash.slots[0][40] ^= 1
        return read(user, slot, offset, address, n)

    start = flash.reads
    call = type(flash.store.read)(other_at_last)
    flash.store.read = call
    assert flash.restore(net) == MG_ERR_FLASH
    assert net.state == decode(PLAN).init


def test_checkpoint_at_looks_at_two_slots_only(net: NativeMachine) -> None:
    flash = Flash()
    some_state(net, 1)
    flash.save(net)
    look = library().mg_checkpoint_at
    look.restype = c.c_bool
    found = (c.c_uint32 * 4)()
    assert look(c.byref(flash.store), 0, found)
    assert list(found) == [1, HEAD.plan_crc, 0, len(net.state)]
    assert not any(look(c.byref(flash.store), slot, found) for slot in (1, 2, 0xFFFFFFFF))
    flash.check()


# ---- power cuts ---------------------------------------------------------------------------------------------------------


def operations_of(unit: int) -> int:
    """Operations of one save: the erase and the program units."""
    return 1 + (STATE_AT + 64) // unit


def prepared(net: NativeMachine, before: int, unit: int, seed: int) -> tuple[Flash, bytes | None]:
    """Flash after ``before`` whole checkpoints, and what it then holds."""
    flash = Flash(unit=unit, seed=seed)
    for k in range(before):
        some_state(net, 1000 * seed + k)
        assert flash.save(net) == k + 1
    return flash, net.state if before else None


def survives(net: NativeMachine, before: int, unit: int, cuts: tuple[int, ...], torn: Torn, seed: int) -> None:
    """Save and cut, again and again: each time old or new must be there. Then a save without a cut."""
    flash, old = prepared(net, before, unit, seed)
    for k, cut in enumerate(cuts):
        new = some_state(net, 7000 * seed + k)
        flash.cut(cut, torn)
        assert flash.save(net) == MG_ERR_FLASH
        assert flash.off
        flash.power_on()
        some_state(net, 1)
        code = flash.restore(net)
        if old is None and code == MG_ERR_EMPTY:
            continue
        assert code > 0, "neither"
        assert net.state in (old, new)
        old = net.state
    last = some_state(net, 2)
    assert flash.save(net) > 0
    some_state(net, 3)
    assert flash.restore(net) > 0
    assert net.state == last
    flash.check()


@pytest.mark.parametrize("torn", Torn)
@pytest.mark.parametrize("unit", [4, 8, 32])
@pytest.mark.parametrize("before", range(4))
def test_a_power_cut_at_every_operation(net: NativeMachine, before: int, unit: int, torn: Torn) -> None:
    """Fault F100."""
    for cut in range(operations_of(unit)):
        survives(net, before, unit, (cut,), torn, seed=cut + 1)


@pytest.mark.parametrize("torn", Torn)
@pytest.mark.parametrize("unit", [4, 32])
def test_two_and_three_power_cuts(net: NativeMachine, unit: int, torn: Torn) -> None:
    rng = random.Random(unit)
    for seed in range(1, 40):
        cuts = tuple(rng.randrange(operations_of(unit)) for _ in range(rng.choice((2, 3))))
        survives(net, rng.randrange(4), unit, cuts, torn, seed)


@pytest.mark.slow
@pytest.mark.parametrize("torn", Torn)
@pytest.mark.parametrize("unit", [4, 8, 32])
@pytest.mark.parametrize("cuts", [2, 3])
def test_every_combination_of_power_cuts(net: NativeMachine, unit: int, torn: Torn, cuts: int) -> None:
    seeds = {2: 5, 3: 1}[cuts]
    every = itertools.product(range(operations_of(unit)), repeat=cuts)
    for k, points in enumerate(every):
        for seed in range(seeds):
            survives(net, k % 4, unit, points, torn, seed=1 + seed + k)
