"""Write the header that ties a build to ops.def: its hash, and which kernels are linked.

usage: ops_header.py OPS_DEF HEADER [KERNEL ...]     no kernel named: all of them

Standard library only, so that a firmware builds where the host package is not installed.
"""

import re
import sys
import zlib
from pathlib import Path


def header(ops: str, wanted: list[str]) -> str:
    """The text of the header. Raises SystemExit where a wanted kernel is not in ops.def."""
    canonical = " ".join(re.sub(r"//[^\n]*", "", ops).split())
    names = re.findall(r"STEP\((\w+), \w+\)", canonical)
    unknown = sorted(set(wanted) - set(names))
    if unknown:
        raise SystemExit(f"ops_header.py: ops.def has no step kind {', '.join(unknown)}; it has {', '.join(names)}")
    lines = [f"#define MG_OPS_HASH 0x{zlib.crc32(canonical.encode()):08X}u"]
    lines += [f"#define MG_HAS_{name} {int(not wanted or name in wanted)}" for name in names]
    return "\n".join(lines) + "\n"


def main() -> None:
    source, target, *wanted = sys.argv[1:]
    Path(target).write_text(header(Path(source).read_text(encoding="utf-8"), wanted), encoding="utf-8")


if __name__ == "__main__":
    main()
