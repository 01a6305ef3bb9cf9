"""A plan in which no output lies over an input: what a step has read is still there when the step is done."""

from __future__ import annotations

from dataclasses import replace

from mcugrad.memory.offsets import place_arena
from mcugrad.pipeline import Compiled
from mcugrad.plan import Region
from mcugrad.plan.assemble import assemble


def apart(compiled: Compiled) -> Compiled:
    """The same whole steps at addresses that keep inputs and outputs apart."""
    compiled = compiled.with_whole_steps()
    offsets, size = place_arena(replace(compiled.layout.live, overs=()), compiled.layout.lower_bound)
    layout = replace(
        compiled.layout,
        offsets={**compiled.layout.offsets, **offsets},
        sizes={**compiled.layout.sizes, Region.ARENA: size + -size % 16},
    )
    return replace(compiled, layout=layout, plan=assemble(compiled.program, layout))
