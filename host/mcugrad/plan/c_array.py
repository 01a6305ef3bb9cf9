"""A plan as a C header, for an application that ships one fixed plan."""

from __future__ import annotations

from mcugrad.plan.codec import decode


def c_array(plan: bytes) -> str:
    """C text that defines mcugrad_plan[], aligned to 16, and the sizes that its caller must provide."""
    head = decode(plan).header
    rows = [", ".join(f"0x{b:02x}" for b in plan[k : k + 16]) for k in range(0, len(plan), 16)]
    memory = head.arena_bytes + head.state_bytes + head.io_bytes
    return "\n".join(
        [
            "// A training plan, written by `mcugrad build`.",
            "#include <stdint.h>",
            f"#define MCUGRAD_MEMORY_BYTES {memory}",
            f"#define MCUGRAD_SAMPLE_BYTES {head.sample_bytes}",
            f"#define MCUGRAD_CLASSES {head.classes}",
            f"static _Alignas(16) const uint8_t mcugrad_plan[{len(plan)}] = {{",
            *(f"  {row}," for row in rows),
            "};",
            "",
        ]
    )
