"""Write the tables that come from code into the documents: step kinds into SPEC.md, supported ops into README.md.

python scripts/tables.py            rewrite them
python scripts/tables.py --check    exit 1 where one is out of date
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from mcugrad.cli.ops import support
from mcugrad.plan.opsdef import StepKind, kinds

ROOT = Path(__file__).resolve().parent.parent


def step_table() -> str:
    """One row a step kind: code, bytes, fields with their offsets."""
    rows = ["| code | step | bytes | scalars (offset) | references (offset: type × count) |", "|---|---|---|---|---|"]
    return "\n".join(rows + [_step_row(k) for k in kinds().values()])


def _step_row(k: StepKind) -> str:
    scalars = " ".join(f"{s.type.lower()} {s.name} ({s.offset})" for s in k.scalars)
    refs = "; ".join(f"{r.access.lower()} {r.name} ({r.offset}: {r.type} × {r.text})".replace("|", "\\|").replace("*", "·") for r in k.refs)
    return f"| 0x{k.code:02x} | {k.name} | {k.size} | {scalars} | {refs} |"


def op_table() -> str:
    """One row an op: forward, error, weight gradient, names in files."""
    rows = ["| op | forward | error | weights | in .tflite | in .onnx |", "|---|---|---|---|---|---|"]
    for row in support():
        marks = " | ".join("yes" if row[k] else "–" for k in ("forward", "error", "weights"))
        rows.append(f"| {row['op']} | {marks} | {', '.join(row['tflite'])} | {', '.join(row['onnx'])} |")
    return "\n".join(rows)


TABLES: dict[str, tuple[str, Callable[[], str]]] = {"steps": ("SPEC.md", step_table), "ops": ("README.md", op_table)}


def updated(name: str, text: str) -> str:
    """A document's text with the table ``name`` made anew between its two marks."""
    begin, end = f"<!-- {name}: made by scripts/tables.py -->\n", f"\n<!-- end of {name} -->"
    before, _, rest = text.partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise SystemExit(f"the marks of table {name} are missing")
    return before + begin + TABLES[name][1]() + end + after


def main() -> int:
    stale = []
    for name, (file, _) in TABLES.items():
        path = ROOT / file
        text = path.read_text(encoding="utf-8")
        new = updated(name, text)
        if new != text:
            stale.append(file)
            if "--check" not in sys.argv:
                path.write_text(new, encoding="utf-8")
    if stale and "--check" in sys.argv:
        print(f"out of date: {', '.join(stale)}; run python scripts/tables.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
