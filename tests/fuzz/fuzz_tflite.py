"""Coverage-guided fuzzing of the .tflite importer: anything that leaves it must be a Graph or a ModelError.

    pip install atheris                       (Linux, a CPython that atheris has a wheel for)
    mkdir -p build/fuzz/tflite && cp ../shared/data/models/mlonmcu/layers__*.tflite build/fuzz/tflite/
    python tests/fuzz/fuzz_tflite.py build/fuzz/tflite -max_len=16384 -timeout=1 -rss_limit_mb=200

A file that crashes it is written to the current folder: add what is wrong in it to tests/host/test_importer_damaged.py. What is accepted
must also survive the way back: the exporter writes it and the importer reads the same number of operators.
"""

from __future__ import annotations

import sys

from mcugrad.errors import ModelError
from mcugrad.exporter import write_tflite
from mcugrad.importer import import_tflite


def one_input(data: bytes) -> None:
    """Run one input. Raises what must never be raised."""
    try:
        graph = import_tflite(data, "fuzz")
    except ModelError:
        return
    assert len(import_tflite(write_tflite(graph), "fuzz").ops) == len(graph.ops)


def main() -> int:
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
