"""Which rows of its inputs a step needs for rows of its output, and the step that makes only those rows.

A tensor of rows is (rows, bytes of a row) in memory order. A step that has no rows cannot be run in stripes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from mcugrad.lower.program import Draft, Value


class Span(NamedTuple):
    """Rows [start, stop)."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Window:
    """Output row p reads input rows p · stride - pad … + reach, inside the input. Elementwise: (1, 0, 0)."""

    stride: int = 1
    pad: int = 0
    reach: int = 0

    def needs(self, out: Span, rows: int) -> Span:
        """Input rows, of ``rows``, that the output rows ``out`` read."""
        first = max(0, out.start * self.stride - self.pad)
        return Span(first, max(first, min(rows, (out.stop - 1) * self.stride - self.pad + self.reach + 1)))


@dataclass(frozen=True, slots=True)
class Rows:
    """A step by rows. ``inputs``: reference -> its bytes in a row, of those that have rows; ``outputs`` likewise."""

    window: Window
    inputs: Mapping[str, int]
    outputs: Mapping[str, int]


_WINDOWS = ("conv2d_fwd_s8", "dwconv2d_fwd_s8", "avgpool_fwd_s8", "maxpool_fwd_s8")
_ELEMENTWISE = {"lut_fwd_s8": ("x",), "mask_s8": ("x",), "add_fwd_s8": ("a", "b"), "mul_fwd_s8": ("a", "b")}


def rows_of(step: Draft, heights: Mapping[Value, int]) -> Rows | None:
    """How ``step`` splits into rows; None where it does not. ``heights``: rows of the tensors that steps before it have written."""
    s = step.scalars
    name = step.kind.name
    if name in _WINDOWS:
        return _window_rows(step)
    if name in _ELEMENTWISE:
        if name in ("add_fwd_s8", "mul_fwd_s8") and not (s["bp"] and s["bc"]):
            return None
        return _flat_rows(step, _ELEMENTWISE[name], heights)
    if name == "copy_s8" and _keeps_channels(step):
        return _flat_rows(step, ("x",), heights)
    return None


def _window_rows(step: Draft) -> Rows:
    s = {k: int(v) for k, v in step.scalars.items()}
    window = Window(s["sh"], s["pt"], (s["r"] - 1) * s.get("dh", 1))
    x, y = step.refs["x"], step.refs["y"]
    assert x is not None and y is not None
    return Rows(window, {"x": x.nbytes // s["h"]}, {"y": y.nbytes // s["p"]})


def _flat_rows(step: Draft, inputs: tuple[str, ...], heights: Mapping[Value, int]) -> Rows | None:
    """A step in which element k of the output comes from element k of the inputs, or pixel k from pixel k."""
    values = {name: step.refs[name] for name in inputs}
    height = next((heights[v] for v in values.values() if v is not None and v in heights), None)
    (out,) = (ref.name for ref in step.kind.refs if ref.writes)
    written = step.refs[out]
    if height is None or written is None:
        return None
    sizes = {name: v.nbytes for name, v in values.items() if v is not None}
    if any(n % height for n in (*sizes.values(), written.nbytes)) or (step.kind.name == "mask_s8" and sizes["x"] // height % 8):
        return None
    return Rows(Window(), {name: n // height for name, n in sizes.items()}, {out: written.nbytes // height})


def _keeps_channels(step: Draft) -> bool:
    """A copy of the leading channels of every pixel."""
    s = step.scalars
    flat = s["d0"] == s["d1"] == 1 and s["x3"] == s["y3"] == 1 and s["y2"] == s["d3"] and s["x2"] * s["d2"] == s["xn"]
    return bool(flat and s["xo"] == s["yo"] == 0 and s["d2"] * s["d3"] == s["yn"] and not s["has_fill"])


def part(step: Draft, rows: Rows, out: Span, refs: Mapping[str, Value | None], spans: Mapping[str, Span]) -> Draft:
    """The step that makes output rows ``out``. ``refs``: its values, those with rows cut to ``spans`` (inputs) or to ``out``."""
    s = dict(step.scalars)
    made = out.stop - out.start
    match step.kind.name:
        case "mask_s8" | "lut_fwd_s8":
            s["n"] = made * rows.inputs["x"]
        case "add_fwd_s8" | "mul_fwd_s8":
            s |= {"p": 1, "c": made * rows.inputs["a"]}
        case "copy_s8":
            s |= {"d2": s["d2"] * made * rows.inputs["x"] // s["xn"], "xn": made * rows.inputs["x"], "yn": made * rows.outputs["y"]}
        case _:
            read = spans["x"]
            s |= {"h": read.stop - read.start, "p": made, "pt": rows.window.pad - out.start * rows.window.stride + read.start}
    return replace(step, scalars=s, refs=refs)
