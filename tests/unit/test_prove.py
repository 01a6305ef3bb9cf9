"""The second proof of the addresses passes what the compiler makes, and finds every kind of mistake in it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from helpers.graphs import GRAPHS
from helpers.tiny_plan import patched
from mcugrad.errors import VerifyError
from mcugrad.lower import Options
from mcugrad.lower.program import Value
from mcugrad.memory.planner import Layout
from mcugrad.memory.prove import prove
from mcugrad.pipeline import Compiled, compile_graph
from mcugrad.plan import Region
from mcugrad.plan.assemble import assemble
from mcugrad.plan.codec import HEADER_BYTES, decode


@pytest.mark.parametrize("options", [Options(), Options(ws=1), Options(batch=4)], ids=["16 bits", "8 bits", "batch"])
@pytest.mark.parametrize("name", GRAPHS)
def test_what_the_compiler_makes_is_proven(name: str, options: Options) -> None:
    compiled = compile_graph(GRAPHS[name](1), "all", options)
    proof = prove(compiled.program, compiled.plan)
    assert proof.steps == len(compiled.program.steps) and proof.references > proof.steps
    assert prove(compiled.lowered, compiled.with_whole_steps().plan).over >= 0


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    return compile_graph(GRAPHS["double_residual"](1), "all")


def moved(compiled: Compiled, value: Value, offset: int) -> bytes:
    """The plan with one value somewhere else, in every record that names it."""
    layout: Layout = replace(compiled.layout, offsets={**compiled.layout.offsets, value: offset})
    return assemble(compiled.program, layout)


def test_two_values_that_hold_at_once_in_the_same_bytes(compiled: Compiled) -> None:
    """Every pair: placed at one address, they are found out, unless the second is an output that may lie just there."""
    live, refused, passed = compiled.layout.live, 0, 0
    may_lie_over = {(over.into.root, over.out.root) for over in live.overs} | {(over.out.root, over.into.root) for over in live.overs}
    for a, pieces in live.pieces.items():
        for b, others in live.pieces.items():
            together = any(p.first <= q.last and q.first <= p.last for p in pieces for q in others)
            if a is b or not together or (a, b) in may_lie_over:
                continue
            try:
                prove(compiled.program, moved(compiled, b, compiled.layout.offsets[a]))
                passed += 1
            except VerifyError as e:
                refused += 1
                assert "please report it" in str(e)
    assert refused > 50 and passed == 0


def test_an_output_too_far_above_its_input() -> None:
    """Laid over a dying input with less than the lag, the step would read what it has written."""
    compiled = compile_graph(GRAPHS["windows"](1), "all")
    found = 0
    for over in compiled.layout.live.overs:
        at = compiled.layout.offset(over.into) - over.lag + over.out.root.align
        if over.lag and over.out.base is None and 0 <= at <= compiled.layout.sizes[Region.ARENA] - over.out.nbytes:
            with pytest.raises(VerifyError, match="before it is read"):
                prove(compiled.program, moved(compiled, over.out, at))
            found += 1
    assert found


def test_a_value_that_leaves_its_region(compiled: Compiled) -> None:
    value = next(v for v in compiled.layout.live.pieces)
    with pytest.raises(VerifyError, match=r"ends at [\d,]+ of ARENA, which has"):
        prove(compiled.program, moved(compiled, value, compiled.layout.sizes[Region.ARENA] - value.nbytes + 4))


def test_values_of_state_that_share_bytes(compiled: Compiled) -> None:
    a, b = (t.weights for t in compiled.program.trained[:2])
    assert a is not None and b is not None
    with pytest.raises(VerifyError, match=r"shares bytes of STATE|written by"):
        prove(compiled.program, moved(compiled, b, compiled.layout.offsets[a]))


def test_one_record_that_means_another_place(compiled: Compiled) -> None:
    step = decode(compiled.plan).steps[0]
    field = next(f for f in step.kind.refs if f.name == "y")
    changed = patched(compiled.plan, HEADER_BYTES + field.offset, int(step.values["y"]) ^ 16)
    with pytest.raises(VerifyError, match=r"another step at|ends at|written by"):
        prove(compiled.program, changed)


def test_constants_that_are_not_what_was_meant(compiled: Compiled) -> None:
    plan = bytearray(compiled.plan)
    head = decode(compiled.plan).header
    plan[head.const_offset] ^= 1
    with pytest.raises(VerifyError, match="finds other bytes in CONST"):
        prove(compiled.program, patched(bytes(plan), 20, head.model_hash))


def test_a_value_that_is_not_aligned(compiled: Compiled) -> None:
    value = compiled.program.trained[0].bias
    assert value is not None
    with pytest.raises(VerifyError, match="is not aligned to 4"):
        prove(compiled.program, moved(compiled, value, compiled.layout.offsets[value] + 2))
