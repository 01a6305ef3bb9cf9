"""Joins an expansion 1x1 with the depthwise convolution behind it into one step, so that the tensor between them never exists.

Possible where nothing else names that tensor: no mask, no copy of its channels, no second reader, no backward step. Biases may be
trained, weights may not. The fused step computes the same numbers bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from mcugrad.lower.context import make_value
from mcugrad.lower.program import Draft, Program, Value
from mcugrad.plan import Region, opsdef

KIND = "expand_dwconv2d_fwd_s8"
_MAX_TAPS = 511
"""Of a window of that kind (ops.def)."""


@dataclass(frozen=True, slots=True)
class Fusion:
    """Steps ``expand`` and ``depthwise`` of the forward segment can be one. ``step``: that one, which stands where the depthwise did.

    ``between``: the tensor that is then not needed, ``between.nbytes`` bytes in exchange for those of the step's scratch.
    """

    expand: int
    depthwise: int
    between: Value
    step: Draft

    @property
    def scratch_bytes(self) -> int:
        scratch = self.step.refs["scratch"]
        assert scratch is not None
        return scratch.nbytes


def fusable(program: Program) -> list[Fusion]:
    """All pairs of forward steps that can be fused, in the order of the steps; no step is in two of them."""
    forward = program.segments[0]
    names = _names(program.steps)
    reader = {step.refs["x"]: k for k, step in enumerate(forward) if step.kind.name == "dwconv2d_fwd_s8"}
    found = []
    for k, step in enumerate(forward):
        e = step.refs.get("y")
        if e is None or e not in reader or e.region is not Region.ARENA or names[e] != 2:
            continue
        depthwise = reader[e]
        if _fits(step, forward[depthwise]) and not _writes(forward[k + 1 : depthwise], step.refs["x"]):
            found.append(Fusion(k, depthwise, e, _join(step, forward[depthwise])))
    return found


def fuse(program: Program, fusions: Iterable[Fusion] | None = None) -> Program:
    """The program with those pairs fused; with all that ``fusable`` finds where none are given."""
    chosen = list(fusable(program) if fusions is None else fusions)
    gone = {f.expand for f in chosen}
    joined = {f.depthwise: f.step for f in chosen}
    forward = tuple(joined.get(k, step) for k, step in enumerate(program.segments[0]) if k not in gone)
    between = {f.between for f in chosen}
    tensors = {index: value for index, value in program.tensors.items() if value not in between}
    return replace(program, segments=(forward, *program.segments[1:]), tensors=tensors)


def _names(steps: Sequence[Draft]) -> dict[Value, int]:
    """How often steps name each value, or a part of it."""
    count: dict[Value, int] = {}
    for step in steps:
        for value in step.refs.values():
            if value is not None:
                count[value.root] = count.get(value.root, 0) + 1
    return count


def _writes(steps: Sequence[Draft], value: Value | None) -> bool:
    """Whether one of the steps writes into the value."""
    assert value is not None
    written = (step.refs[ref.name] for step in steps for ref in step.kind.refs if ref.writes)
    return any(v is not None and v.root is value.root for v in written)


def _fits(step: Draft, depthwise: Draft) -> bool:
    """Whether ``step`` is a frozen 1x1 convolution over whole maps, and the depthwise one a frozen one of one output per input."""
    if step.kind.name != "conv2d_fwd_s8":
        return False
    c, d = step.scalars, depthwise.scalars
    point = all(c[name] == 1 for name in ("r", "s", "sh", "sw", "g")) and not any(c[name] for name in ("pt", "pl", "it"))
    whole = (c["p"], c["q"], c["o"], c["zy"]) == (c["h"], c["w"], d["i"], d["zx"])
    frozen = d["m"] == 1 and d["ot"] == 0 and d["r"] * d["s"] <= _MAX_TAPS
    return point and whole and frozen and c["rounding"] == d["rounding"]


def _join(step: Draft, depthwise: Draft) -> Draft:
    c, d = step.scalars, depthwise.scalars
    scalars: dict[str, float] = {name: c[name] for name in ("h", "w", "i", "rounding", "zx")}
    scalars |= {name: d[name] for name in ("p", "q", "o", "r", "s", "sh", "sw", "dh", "dw", "pt", "pl", "zy", "lo", "hi")}
    scalars |= {"bef": c["bf"], "bdf": d["bf"], "ze": c["zy"], "elo": c["lo"], "ehi": c["hi"]}
    kind = opsdef.kinds()[KIND]
    label = f"{step.label} + {depthwise.label}"
    scratch = make_value(f"{label}.scratch", Region.ARENA, "int16_t", kind.counts(scalars)["scratch"])
    refs: Mapping[str, Value | None] = {
        **{"x": step.refs["x"], "we": step.refs["wf"], "be": step.refs["b"], "rqe": step.refs["rq"]},
        **{"wd": depthwise.refs["wf"], "bd": depthwise.refs["b"], "rqd": depthwise.refs["rq"], "y": depthwise.refs["y"]},
        "scratch": scratch,
    }
    return Draft(kind, label, scalars, {ref.name: refs[ref.name] for ref in kind.refs})
