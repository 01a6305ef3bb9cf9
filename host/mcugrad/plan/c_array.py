"""A plan as a C header, for an application that ships one fixed plan."""

from __future__ import annotations

from collections.abc import Mapping

from mcugrad.plan.codec import Header, Region, decode, offset_of, region_of

ALIGN = 16
"""What mg_init asks of its memory and puts each region at a multiple of."""


def c_constants(head: Header) -> Mapping[str, int]:
    """The macros of the header by name. The regions lie in the memory of mg_init one behind the other: STATE, IO, ARENA."""
    state, io, arena = (-(-n // ALIGN) * ALIGN for n in (head.state_bytes, head.io_bytes, head.arena_bytes))
    starts = {Region.STATE: 0, Region.IO: state, Region.ARENA: state + io}
    return {
        "MCUGRAD_MEMORY_BYTES": state + io + arena,
        "MCUGRAD_PLAN_BYTES": head.plan_bytes,
        "MCUGRAD_STATE_OFFSET": 0,
        "MCUGRAD_STATE_BYTES": head.state_bytes,
        "MCUGRAD_IO_OFFSET": state,
        "MCUGRAD_IO_BYTES": head.io_bytes,
        "MCUGRAD_ARENA_OFFSET": state + io,
        "MCUGRAD_ARENA_BYTES": head.arena_bytes,
        "MCUGRAD_SAMPLE_OFFSET": starts[region_of(head.sample)] + offset_of(head.sample),
        "MCUGRAD_SAMPLE_BYTES": head.sample_bytes,
        "MCUGRAD_CLASSES": head.classes,
    }


ASSERTS = (
    ("sizeof mcugrad_plan == MCUGRAD_PLAN_BYTES", "the plan is whole"),
    (f"MCUGRAD_STATE_OFFSET % {ALIGN} == 0", "STATE is aligned"),
    (f"MCUGRAD_IO_OFFSET % {ALIGN} == 0", "IO is aligned"),
    (f"MCUGRAD_ARENA_OFFSET % {ALIGN} == 0", "ARENA is aligned"),
    ("MCUGRAD_STATE_OFFSET + MCUGRAD_STATE_BYTES <= MCUGRAD_IO_OFFSET", "STATE ends before IO"),
    ("MCUGRAD_IO_OFFSET + MCUGRAD_IO_BYTES <= MCUGRAD_ARENA_OFFSET", "IO ends before ARENA"),
    ("MCUGRAD_ARENA_OFFSET + MCUGRAD_ARENA_BYTES <= MCUGRAD_MEMORY_BYTES", "ARENA ends in the memory"),
    ("MCUGRAD_SAMPLE_OFFSET >= MCUGRAD_IO_OFFSET", "the sample is not in STATE"),
    ("MCUGRAD_SAMPLE_OFFSET + MCUGRAD_SAMPLE_BYTES <= MCUGRAD_MEMORY_BYTES", "the sample ends in the memory"),
)
"""(C expression, what it says): the compiler checks them again."""


def c_array(plan: bytes) -> str:
    """C text that defines mcugrad_plan[], aligned to 16, the sizes that its caller must provide, and where the regions will be."""
    rows = [", ".join(f"0x{b:02x}" for b in plan[k : k + 16]) for k in range(0, len(plan), 16)]
    return "\n".join(
        [
            "// A training plan, written by `mcugrad build`.",
            "#include <stdint.h>",
            *(f"#define {name} {value}" for name, value in c_constants(decode(plan).header).items()),
            f"static _Alignas({ALIGN}) const uint8_t mcugrad_plan[{len(plan)}] = {{",
            *(f"  {row}," for row in rows),
            "};",
            *(f'_Static_assert({expression}, "{words}");' for expression, words in ASSERTS),
            "",
        ]
    )
