"""Every step kind of ops.def has a reference kernel and a sweep."""

from __future__ import annotations

from pathlib import Path

from mcugrad.plan.opsdef import kinds
from mcugrad.ref.table import KERNELS


def test_every_kind_has_a_reference_kernel() -> None:
    assert set(KERNELS) == set(kinds())


def test_every_kind_is_compared_with_the_c_kernel() -> None:
    text = "".join(p.read_text() for p in Path(__file__).parent.glob("test_*.py"))
    assert [k for k in kinds() if f'sweep("{k}"' not in text and f'check("{k}"' not in text] == []
