"""The plan's bytes: what goes in comes out, the offsets are those of SPEC.md section 1, and damage is refused by name."""

from __future__ import annotations

import struct
import zlib
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.graphs import GRAPHS, GraphBuilder, chain
from mcugrad.autodiff import Loss
from mcugrad.errors import PlanError
from mcugrad.pipeline import compile_graph
from mcugrad.plan import Header, Interface, Region, decode, encode, offset_of, opsdef, ref, region_of

PLAN = compile_graph(chain(1), "all").plan

FIELD_OFFSETS = {
    "magic": (0, "I"),
    "version": (4, "H"),
    "header_bytes": (6, "H"),
    "ops_hash": (8, "I"),
    "plan_bytes": (12, "I"),
    "plan_crc": (16, "I"),
    "model_hash": (20, "I"),
    "arena_bytes": (24, "I"),
    "state_bytes": (28, "I"),
    "io_bytes": (32, "I"),
    "const_offset": (36, "I"),
    "const_bytes": (40, "I"),
    "init_offset": (44, "I"),
    "steps_offset": (48, "I"),
    "forward_steps": (52, "I"),
    "eval_steps": (56, "I"),
    "loss_steps": (60, "I"),
    "backward_steps": (64, "I"),
    "commit_steps": (68, "I"),
    "steps_bytes": (72, "I"),
    "sample": (76, "I"),
    "sample_bytes": (80, "I"),
    "args": (84, "I"),
    "result": (88, "I"),
    "output": (92, "I"),
    "output_bytes": (96, "I"),
    "classes": (100, "I"),
    "rng": (104, "I"),
    "target": (108, "I"),
    "target_bytes": (112, "I"),
}
"""SPEC.md section 1, typed in by hand."""


def repaired(plan: bytearray) -> bytes:
    """The plan with the CRC of its bytes, so that only the damage itself can be noticed."""
    struct.pack_into("<I", plan, 16, zlib.crc32(plan[20:]))
    return bytes(plan)


def patched(offset: int, code: str, value: int, plan: bytes = PLAN) -> bytes:
    out = bytearray(plan)
    struct.pack_into("<" + code, out, offset, value)
    return repaired(out)


def test_the_header_is_where_the_specification_says() -> None:
    head = decode(PLAN).header
    assert [f.name for f in fields(Header)] == list(FIELD_OFFSETS)
    for name, (offset, code) in FIELD_OFFSETS.items():
        assert struct.unpack_from("<" + code, PLAN, offset)[0] == getattr(head, name), name
    assert (head.magic, head.version, head.header_bytes) == (0x4C50474D, 2, 116)
    assert PLAN[:4] == b"MGPL"
    assert head.plan_crc == zlib.crc32(PLAN[20:]) and head.plan_bytes == len(PLAN)
    assert head.model_hash == 0x1234ABCD and head.classes == 4
    assert head.const_offset % 16 == head.init_offset % 16 == head.steps_offset % 4 == 0


@pytest.mark.parametrize("name", list(GRAPHS))
def test_a_decoded_plan_encodes_to_the_same_bytes(name: str) -> None:
    bytes_in = compile_graph(GRAPHS[name](2), "all").plan
    plan = decode(bytes_in)
    records = iter(step.kind.pack(step.values) for step in plan.steps)
    segments = [[next(records) for _ in range(n)] for n in plan.segments]
    interface = Interface(**{f.name: getattr(plan.header, f.name) for f in fields(Interface)})
    assert encode(interface, segments, plan.const, plan.init) == bytes_in


@st.composite
def records(draw: st.DrawFn) -> tuple[opsdef.StepKind, dict[str, float]]:
    """A step kind and any values that its fields can hold; NEEDs are for the caller."""
    kind = draw(st.sampled_from(sorted(opsdef.kinds().values(), key=lambda k: k.code)))
    found: dict[str, st.SearchStrategy[float]] = {
        "U8": st.integers(0, 255),
        "S8": st.integers(-128, 127),
        "U16": st.integers(0, 65535),
        "S16": st.integers(-32768, 32767),
        "U32": st.integers(0, 2**32 - 1),
        "S32": st.integers(-(2**31), 2**31 - 1),
        "F32": st.floats(width=32, allow_nan=False),
    }
    values = {s.name: draw(found[s.type]) for s in kind.scalars}
    return kind, values | {r.name: draw(st.integers(0, 2**32 - 1)) for r in kind.refs}


@given(records())
@settings(max_examples=200)
def test_a_record_comes_back(case: tuple[opsdef.StepKind, dict[str, float]]) -> None:
    kind, values = case
    if not all(eval(need, {}, dict(values)) for need, _ in kind.needs):
        with pytest.raises(PlanError, match="does not hold"):
            kind.pack(values)
        return
    record = kind.pack(values)
    assert len(record) == kind.size and kind.size % 4 == 0
    assert struct.unpack_from("<HH", record) == (kind.code, kind.size)
    assert kind.unpack(record) == values


@given(st.sampled_from(list(Region)), st.integers(0, 2**30 - 1))
def test_a_reference_names_region_and_offset(region: Region, offset: int) -> None:
    reference = ref(region, offset)
    assert reference == region * 2**30 + offset < 2**32
    assert (region_of(reference), offset_of(reference)) == (region, offset)


@pytest.mark.parametrize("offset", [-1, 2**30])
def test_an_offset_beyond_30_bits_is_refused(offset: int) -> None:
    with pytest.raises(PlanError, match="does not fit 30 bits"):
        ref(Region.CONST, offset)


@pytest.mark.parametrize("size", [0, 1, 20, 111])
def test_a_plan_shorter_than_its_header(size: int) -> None:
    with pytest.raises(PlanError, match=f"plan has {size} bytes, the header alone has 116"):
        decode(PLAN[:size])


def test_a_plan_cut_anywhere() -> None:
    for size in range(116, len(PLAN), 97):
        with pytest.raises(PlanError, match="damaged"):
            decode(PLAN[:size])
    with pytest.raises(PlanError, match="damaged"):
        decode(PLAN + bytes(16))


@given(st.integers(0, len(PLAN) - 1), st.integers(1, 255))
@settings(max_examples=200)
def test_any_changed_byte_is_noticed(position: int, change: int) -> None:
    plan = bytearray(PLAN)
    plan[position] ^= change
    with pytest.raises(PlanError):
        decode(bytes(plan))


@pytest.mark.parametrize(
    "field, value, say",
    [
        ("magic", 0, "not a plan of version 2"),
        ("version", 3, "version 3"),
        ("header_bytes", 112, "not a plan of version 2"),
        ("ops_hash", 7, "plan is for ops.def 0x00000007"),
        ("plan_bytes", len(PLAN) - 16, "damaged"),
        ("const_offset", 2**32 - 16, "CONST is bytes"),
        ("const_bytes", 2**31, "CONST is bytes"),
        ("init_offset", len(PLAN), "the initial STATE is bytes"),
        ("state_bytes", 2**30, "the initial STATE is bytes"),
        ("steps_offset", 0, "steps is bytes"),
        ("steps_offset", len(PLAN) - 4, "steps is bytes"),
        ("steps_bytes", 2**32 - 4, "steps is bytes"),
        ("steps_bytes", 4, "step 0"),
        ("steps_bytes", 2, "step 0"),
        ("forward_steps", 0, "its segments count"),
        ("backward_steps", 2**32 - 1, "its segments count"),
        ("commit_steps", 1, "its segments count"),
    ],
)
def test_a_false_header_field_is_named(field: str, value: int, say: str) -> None:
    offset, code = FIELD_OFFSETS[field]
    with pytest.raises(PlanError) as caught:
        decode(patched(offset, code, value))
    assert say in str(caught.value)


@pytest.mark.parametrize("code, size", [(0xEE, None), (0, None), (None, 0), (None, 4), (None, 0xFFFC)])
def test_a_step_that_is_not_in_the_table(code: int | None, size: int | None) -> None:
    first = decode(PLAN).steps[0].kind
    plan = bytearray(PLAN)
    struct.pack_into("<HH", plan, 116, first.code if code is None else code, first.size if size is None else size)
    with pytest.raises(PlanError, match=r"step 0: code .* is not in ops\.def"):
        decode(repaired(plan))


@given(st.lists(st.tuples(st.integers(20, 115), st.integers(0, 255)), min_size=1, max_size=4))
@settings(max_examples=300)
def test_any_header_is_decoded_or_refused(changes: list[tuple[int, int]]) -> None:
    plan = bytearray(PLAN)
    for offset, value in changes:
        plan[offset] = value
    try:
        found = decode(repaired(plan))
    except PlanError:
        return
    assert len(found.const) == found.header.const_bytes and len(found.init) == found.header.state_bytes


def test_pack_refuses_what_does_not_fit() -> None:
    step = next(s for s in decode(PLAN).steps if s.kind.name == "conv2d_fwd_s8")
    with pytest.raises(PlanError, match="r = 256 does not fit U8"):
        step.kind.pack({**step.values, "r": 256})
    with pytest.raises(PlanError, match="does not hold"):
        step.kind.pack({**step.values, "ws": 3})
    with pytest.raises(PlanError, match="'extra'"):
        step.kind.pack({**step.values, "extra": 0})
    with pytest.raises(PlanError, match="'zx'"):
        step.kind.pack({k: v for k, v in step.values.items() if k != "zx"})


def test_only_a_regression_has_a_target() -> None:
    head = decode(PLAN).header
    assert (head.target, head.target_bytes, head.classes) == (0, 0, 4)
    compiled = compile_graph(chain(1), "all", None, Loss.MSE)
    head, target = decode(compiled.plan).header, compiled.program.target
    assert target is not None and (head.target_bytes, head.classes) == (4, 1)
    assert region_of(head.target) is Region.IO and offset_of(head.target) == compiled.layout.offsets[target]


def test_inputs_and_outputs_stand_in_a_row() -> None:
    """Each at a multiple of 4; sample_bytes and output_bytes count from the first to the end of the last."""
    b = GraphBuilder((1, 3, 3, 1), 1)
    second, third = b.new_input((1, 5)), b.new_input((1, 2, 2, 1))
    graph = b.finish(b.conv(b.input, 1), b.linear(second, 6), third)
    compiled = compile_graph(graph, None)
    head = decode(compiled.plan).header
    assert (head.sample_bytes, head.output_bytes) == (12 + 8 + 4, 12 + 8 + 4)
    inputs = [compiled.program.tensors[k] for k in compiled.train.graph.inputs]
    assert (region_of(head.sample), region_of(head.output)) == (Region.ARENA, Region.IO)
    for values, first in ((inputs, head.sample), (compiled.program.outputs, head.output)):
        assert [compiled.layout.offset(v) - offset_of(first) for v in values] == [0, 12, 20]


def test_state_and_const_are_where_the_header_says() -> None:
    compiled = compile_graph(chain(1), "all")
    plan = decode(compiled.plan)
    value = compiled.program.trained[0].weights
    assert value is not None and value.data is not None
    at = plan.header.init_offset + compiled.layout.offsets[value]
    assert compiled.plan[at : at + value.nbytes] == value.data
    w = compiled.train.graph.tensors[compiled.train.graph.layers[0].inputs[1]].data
    assert w is not None
    assert (np.frombuffer(value.data, "<i2").reshape(w.shape) == w.astype(int) * 256 + 128).all()
