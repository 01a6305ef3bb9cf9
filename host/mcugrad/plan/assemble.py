"""A program and its addresses to the bytes of a plan."""

from __future__ import annotations

from mcugrad.lower.program import Draft, Program, Value
from mcugrad.memory.planner import Layout
from mcugrad.plan.codec import Interface, Region, encode, ref


def assemble(program: Program, layout: Layout) -> bytes:
    """Write every record with its references resolved, the CONST region, the initial STATE and the header."""
    segments = [[_record(step, layout) for step in segment] for segment in program.segments]
    interface = Interface(
        arena_bytes=layout.sizes[Region.ARENA],
        state_bytes=layout.sizes[Region.STATE],
        io_bytes=layout.sizes[Region.IO],
        sample=_ref(program.sample, layout),
        sample_bytes=program.sample.nbytes,
        args=_ref(program.args, layout),
        result=_ref(program.result, layout),
        output=_ref(program.outputs[0], layout),
        output_bytes=_span(program.outputs, layout),
        classes=program.classes,
        rng=_ref(program.rng, layout),
        target=0 if program.target is None else _ref(program.target, layout),
        target_bytes=0 if program.target is None else program.target.nbytes,
        model_hash=program.model_hash,
    )
    return encode(interface, segments, _image(layout, Region.CONST), _image(layout, Region.STATE))


def _span(values: tuple[Value, ...], layout: Layout) -> int:
    """Bytes from the first to the last of values that stand in a row."""
    return layout.offsets[values[-1]] + values[-1].nbytes - layout.offsets[values[0]]


def _ref(value: Value, layout: Layout) -> int:
    return ref(value.region, layout.offset(value))


def _record(step: Draft, layout: Layout) -> bytes:
    refs = {name: 0 if value is None else _ref(value, layout) for name, value in step.refs.items()}
    return step.kind.pack({**step.scalars, **refs})


def _image(layout: Layout, region: Region) -> bytes:
    """The bytes of CONST, or of STATE at the start."""
    image = bytearray(layout.sizes[region])
    for value, offset in layout.offsets.items():
        if value.region is region and value.data is not None:
            image[offset : offset + value.nbytes] = value.data
    return bytes(image)
