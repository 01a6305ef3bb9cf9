"""Coverage-guided fuzzing of the .tflite importer: anything that leaves it must be a Graph or a ModelError.

    pip install atheris                       (Linux, a CPython that atheris has a wheel for)
    PYTHONPATH=tests python tests/fuzz/fuzz_tflite.py --seeds build/fuzz/tflite
    python tests/fuzz/fuzz_tflite.py build/fuzz/tflite -max_len=16384 -timeout=1 -rss_limit_mb=300

The seeds are one small file for each kind of operator. A file that crashes it is written to the current folder: add what is wrong in it to
tests/host/test_importer_damaged.py. What is accepted as int8 must also survive the way back: the exporter writes it and the importer reads
the same operators. (A window with other pads than SAME and VALID is none of those that a file can have.)
"""

from __future__ import annotations

import sys
from pathlib import Path

from mcugrad.errors import ModelError
from mcugrad.exporter import write_tflite
from mcugrad.importer import import_tflite


def one_input(data: bytes) -> None:
    """Run one input, as int8 and as float. Raises what must never be raised."""
    try:
        import_tflite(data, "fuzz", allow_float=True)
    except ModelError:
        return
    try:
        graph = import_tflite(data, "fuzz")
    except ModelError:
        return
    assert import_tflite(write_tflite(graph), "fuzz").ops == graph.ops


def write_seeds(folder: Path) -> None:
    """One file for each kind of operator."""
    from helpers.tiny_graphs import ONE_OP, every_op, small_net  # noqa: PLC0415

    folder.mkdir(parents=True, exist_ok=True)
    for name, make in {**ONE_OP, "every op": every_op, "small": small_net}.items():
        (folder / f"{name.replace(' ', '_').replace(',', '')}.tflite").write_bytes(write_tflite(make()))


def main() -> int:
    if sys.argv[1:2] == ["--seeds"]:
        write_seeds(Path(sys.argv[2]))
        return 0
    try:
        import atheris  # noqa: PLC0415
    except ImportError:
        print("atheris is not installed: pip install atheris", file=sys.stderr)
        return 69
    atheris.instrument_all()
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
