"""The parser of ops.def and the codec of its records."""

from __future__ import annotations

import re
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcugrad.errors import PlanError
from mcugrad.paths import firmware_dir
from mcugrad.plan import opsdef
from mcugrad.plan.opsdef import SCALARS, TYPES, StepKind, kinds

TEXT = """
// a comment with STEP(nothing, 0x99)
STEP(toy_fwd_s8, 0x7e)
  U8(r) U16(n)  // padding between them
  S8(zx) S32(mult)
  NEED(n >= 1 && (r <= 3 || zx < 0))
  IN(int8_t, x, n * (r - 1))
  UPD(mg_exponent, rx, 1)
END(toy_fwd_s8)
"""


@pytest.fixture
def toy() -> StepKind:
    return opsdef.parse(TEXT)["toy_fwd_s8"]


WITHOUT_NEEDS = opsdef.parse(re.sub(r"NEED\(.*\)", "", (firmware_dir() / "ops.def").read_text()))
GOOD = {"r": 3, "n": 5, "zx": -1, "mult": -2, "x": 0x40000010, "rx": 0x80000004}


def test_parse(toy: StepKind) -> None:
    assert (toy.code, toy.size) == (0x7E, 24)
    assert [(s.name, s.type, s.offset) for s in toy.scalars] == [("r", "U8", 4), ("n", "U16", 6), ("zx", "S8", 8), ("mult", "S32", 12)]
    assert [(r.name, r.access, r.type, r.offset, r.writes) for r in toy.refs] == [
        ("x", "IN", "int8_t", 16, False),
        ("rx", "UPD", "mg_exponent", 20, True),
    ]


def test_counts_are_expressions_over_the_scalars(toy: StepKind) -> None:
    assert toy.counts(GOOD) == {"x": 10, "rx": 1}
    assert toy.nbytes(GOOD) == {"x": 10, "rx": 4}


def test_pack_gives_every_byte(toy: StepKind) -> None:
    assert toy.pack(GOOD) == struct.pack("<HHBxHbxxxiII", 0x7E, 24, 3, 5, -1, -2, 0x40000010, 0x80000004)


def test_unpack_undoes_pack(toy: StepKind) -> None:
    assert toy.unpack(toy.pack(GOOD)) == GOOD


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"n": 0}, "n >= 1"),
        ({"r": 4, "zx": 0}, "r <= 3"),
        ({"r": 256}, "r = 256 does not fit U8"),
        ({"zx": -129}, "zx = -129 does not fit S8"),
        ({"mult": 2**31}, "does not fit S32"),
        ({"q": 1}, "['q'] are missing or unknown"),
    ],
)
def test_pack_refuses(toy: StepKind, change: dict[str, int], words: str) -> None:
    with pytest.raises(PlanError, match=re.escape(words)):
        toy.pack(GOOD | change)


def test_pack_refuses_a_missing_field(toy: StepKind) -> None:
    with pytest.raises(PlanError, match="missing"):
        toy.pack({k: v for k, v in GOOD.items() if k != "rx"})


def test_parse_refuses_an_unknown_macro() -> None:
    with pytest.raises(PlanError, match="F128"):
        opsdef.parse(TEXT.replace("S32(mult)", "F128(mult)"))


def test_the_table_is_sound() -> None:
    assert len(kinds()) == (firmware_dir() / "ops.def").read_text().count("\nSTEP(")
    assert len({k.code for k in kinds().values()}) == len(kinds())
    for kind in kinds().values():
        names = [f.name for f in (*kind.scalars, *kind.refs)]
        assert len(set(names)) == len(names)
        assert kind.size % 4 == 0
        assert all(s.offset % SCALARS[s.type][1] == 0 for s in kind.scalars)
        assert all(r.type in TYPES and r.offset % 4 == 0 for r in kind.refs)


def values(kind: StepKind) -> st.SearchStrategy[dict[str, float]]:
    """Any values that fit the fields, whatever the NEEDs say."""
    bits = {s.name: 8 * SCALARS[s.type][1] for s in kind.scalars}
    signed = {s.name for s in kind.scalars if s.type.startswith("S")}
    fields = {n: st.integers(-(2 ** (b - 1)), 2 ** (b - 1) - 1) if n in signed else st.integers(0, 2**b - 1) for n, b in bits.items()}
    fields |= {s.name: st.floats(allow_nan=False, width=32) for s in kind.scalars if s.type == "F32"}
    return st.fixed_dictionaries(fields | {r.name: st.integers(0, 2**32 - 1) for r in kind.refs})


@pytest.mark.parametrize("name", sorted(kinds()))
@given(data=st.data())
def test_every_kind_round_trips(name: str, data: st.DataObject) -> None:
    kind = WITHOUT_NEEDS[name]
    assert kind.size == kinds()[name].size
    v = data.draw(values(kind))
    record = kind.pack(v)
    assert len(record) == kind.size
    assert struct.unpack_from("<HH", record) == (kind.code, kind.size)
    assert kind.unpack(record) == v


def hash_of(text: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(opsdef, "_source", lambda: text)
    return opsdef.ops_hash.__wrapped__()


def test_ops_hash_ignores_comments_and_white_space(monkeypatch: pytest.MonkeyPatch) -> None:
    spaced = TEXT.replace("// a comment", "// another").replace("\n", "\n\n\t ").replace("U8(r) ", "U8(r)\n\n")
    assert hash_of(spaced, monkeypatch) == hash_of(TEXT, monkeypatch)


@pytest.mark.parametrize(("old", "new"), [("U16(n)", "U32(n)"), ("0x7e", "0x7d"), ("n >= 1", "n >= 2"), ("r - 1", "r")])
def test_ops_hash_sees_every_fact(monkeypatch: pytest.MonkeyPatch, old: str, new: str) -> None:
    assert hash_of(TEXT.replace(old, new), monkeypatch) != hash_of(TEXT, monkeypatch)
