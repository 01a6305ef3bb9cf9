"""Which inputs of a step its output may be laid over, and how far below them: the order of reads and writes (SPEC.md section 3) in bytes.

Every kernel writes its output upwards, row by row or element by element, and once it writes a row it reads no input row below the first
that this or a later output row needs. So an output may share bytes with an input that nobody needs afterwards, where it starts ``lag``
bytes or more below it.

Letters as in ops.def. ``k`` holds the scalars of one record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from mcugrad.plan.opsdef import StepKind

Pair = tuple[str, str]
"""(input reference, output reference) of a step kind."""
Lags = dict[Pair, int]
_Scalars = Mapping[str, int]
_Rows = npt.NDArray[np.int64]


def lags(kind: StepKind, scalars: Mapping[str, float], rows: Sequence[int] | None = None) -> Lags:
    """(input, output) -> the smallest lag >= 0 in bytes: the step is right wherever address(output) <= address(input) - lag.

    Pairs that are not in the result must never share bytes. Each pair holds by itself, so one output may cover several inputs.
    ``rows`` is what lies behind the reference of that name of a resize step; without it y or dy of a resize must not be covered.

    A pair speaks of the step alone. Who lays one over the other sees to it that the input is dead afterwards, that an UPD output (y of
    copy_s8) does not hold anything yet, and that the address suits the type of the elements.
    """
    k = {name: int(value) for name, value in scalars.items()}
    if rows is not None and kind.name in _TABLE_RULES:
        return _TABLE_RULES[kind.name](k, np.minimum(np.asarray(rows, np.int64), k["h"] - 1))
    rule = _RULES.get(kind.name)
    return rule(k) if rule is not None else {}


def _tail(k: _Scalars) -> Lags:
    """What all error steps read for one element just before they write it: the skip error and the x of the clamp mask."""
    return {(name, "dx"): 0 for name, used in (("skip", k["has_skip"]), ("x", k["has_mask"])) if used}


# ---- windows that slide over rows: input rows of `wide` bytes, output rows of `long` bytes ---------------------------


def _tops(k: _Scalars) -> _Rows:
    """The input row of tap 0 of every p, (P,): negative in the padding."""
    return np.arange(k["p"], dtype=np.int64) * k["sh"] - k["pt"]


def _first(k: _Scalars) -> _Rows:
    """The first input row inside x that a tap of row p touches, (P,): H and more where there is none."""
    top, dilation = _tops(k), k.get("dh", 1)
    first = np.where(top < 0, top % dilation, top)
    return np.where(first <= top + (k["r"] - 1) * dilation, first, k["h"])


def _last(k: _Scalars) -> _Rows:
    """The last input row inside x that a tap of row p touches, (P,): negative where there is none."""
    top, dilation = _tops(k), k.get("dh", 1)
    reach: _Rows = np.minimum(k["r"] - 1, (k["h"] - 1 - top) // dilation) * dilation
    return top + reach


def _largest(distances: _Rows) -> int:
    return int(distances.max(initial=0))


def _forward(k: _Scalars, wide: int, long: int) -> int:
    """The end of output row p must not pass the start of the first input row that p reads."""
    first = _first(k)
    return _largest(((np.arange(k["p"]) + 1) * long - first * wide)[first < k["h"]])


def _backward(k: _Scalars, wide: int, long: int) -> int:
    """Row p of dy, `wide` bytes, is read until the last row of dx, `long` bytes, that it reaches is written."""
    top, last = _tops(k), _last(k)
    return _largest(((last + 1) * long - np.arange(k["p"]) * wide)[(last >= 0) & (top < k["h"])])


def _conv2d_fwd(k: _Scalars) -> Lags:
    return {("x", "y"): _forward(k, k["w"] * k["i"] * k["g"], k["q"] * k["o"])}


def _conv2d_bwd(k: _Scalars) -> Lags:
    return _tail(k) | {("dy", "dx"): _backward(k, k["q"] * k["o"], k["w"] * k["i"] * k["g"])}


def _dwconv2d_fwd(k: _Scalars) -> Lags:
    return {("x", "y"): _forward(k, k["w"] * k["i"], k["q"] * k["o"])}


def _dwconv2d_bwd(k: _Scalars) -> Lags:
    return _tail(k) | {("dy", "dx"): _backward(k, k["q"] * k["o"], k["w"] * k["i"])}


def _pool_fwd(k: _Scalars) -> Lags:
    return {("x", "y"): _forward(k, k["w"] * k["c"], k["q"] * k["c"])}


def _pool_bwd(k: _Scalars) -> Lags:
    return _tail(k) | {("dy", "dx"): _backward(k, k["q"] * k["c"], k["w"] * k["c"])}


def _maxpool_bwd(k: _Scalars) -> Lags:
    """A row of dx asks every window around it, whose rows of x begin above it."""
    first, last = _first(k), _last(k)
    spans = (last + 1 - first)[(last >= 0) & (first < k["h"])]
    return _pool_bwd(k) | {("x", "dx"): _largest(spans) * k["w"] * k["c"]}


# ---- rows of their own: row n of the output reads row n of the input ---------------------------------------------------


def _own_rows(n: int, wide: int, long: int) -> int:
    return max(long, n * long - (n - 1) * wide)


def _linear_fwd_s8(k: _Scalars) -> Lags:
    return {("x", "y"): _own_rows(k["n"], k["i"], k["o"])}


def _linear_fwd_s32(k: _Scalars) -> Lags:
    return {("x", "y"): _own_rows(k["n"], k["i"], 4 * k["o"])}


def _linear_bwd(k: _Scalars) -> Lags:
    return _tail(k) | {("dy", "dx"): _own_rows(k["n"], k["o"], k["i"])}


def _softmax_fwd(k: _Scalars) -> Lags:
    return {("x", "y"): _own_rows(k["n"], k["c"], k["c"])}


# ---- element by element ------------------------------------------------------------------------------------------------


def _b_is_whole(k: _Scalars) -> bool:
    """Whether b, which may be spread over rows or columns, has as many elements as a."""
    return (k["bp"] == 1 or k["p"] == 1) and (k["bc"] == 1 or k["c"] == 1)


def _x_to_y(_: _Scalars) -> Lags:
    return {("x", "y"): 0}


def _a_and_b_to_y(k: _Scalars) -> Lags:
    return {("a", "y"): 0} | ({("b", "y"): 0} if _b_is_whole(k) else {})


def _dy_to_dx(k: _Scalars) -> Lags:
    return _tail(k) | {("dy", "dx"): 0}


def _dy_and_x_to_dx(k: _Scalars) -> Lags:
    return _dy_to_dx(k) | {("x", "dx"): 0}


def _dy_and_y_to_dx(k: _Scalars) -> Lags:
    return _dy_to_dx(k) | {("y", "dx"): 0}


def _dy_and_b_to_dx(k: _Scalars) -> Lags:
    return _dy_to_dx(k) | ({("b", "dx"): 0} if _b_is_whole(k) else {})


def _minmax_bwd(k: _Scalars) -> Lags:
    return _dy_and_b_to_dx(k) | {("a", "dx"): 0}


def _sum_bwd(k: _Scalars) -> Lags:
    return _dy_to_dx(k) if _b_is_whole(k) else _tail(k)


def _mul_bwd_b(k: _Scalars) -> Lags:
    return _dy_to_dx(k) | {("a", "dx"): 0} if _b_is_whole(k) else _tail(k)


def _ascends(k: _Scalars, side: str) -> bool:
    """Whether the elements of a block lie in the order of its axes, none twice."""
    extent = 0
    for axis in (3, 2, 1, 0):
        size, step = k[f"d{axis}"], k[f"{side}{axis}"]
        if size > 1 and step <= extent:
            return False
        extent += (size - 1) * step
    return True


def _copy(k: _Scalars) -> Lags:
    """An element of y must not pass the element of x that it comes from: the largest distance is at a corner of the block."""
    if k["has_fill"] or not (_ascends(k, "x") and _ascends(k, "y")):
        return {}
    ahead = sum((k[f"d{axis}"] - 1) * max(0, k[f"y{axis}"] - k[f"x{axis}"]) for axis in range(4))
    return {("x", "y"): max(0, k["yo"] - k["xo"] + ahead)}


# ---- resize: row p reads row rows[p] -----------------------------------------------------------------------------------


def _resize_fwd(k: _Scalars, rows: _Rows) -> Lags:
    return {("x", "y"): _largest((np.arange(k["p"]) + 1) * (k["q"] * k["c"]) - rows * (k["w"] * k["c"]))}


def _resize_bwd(k: _Scalars, rows: _Rows) -> Lags:
    return _tail(k) | {("dy", "dx"): _largest((rows + 1) * (k["w"] * k["c"]) - np.arange(k["p"]) * (k["q"] * k["c"]))}


_RULES: Mapping[str, Callable[[_Scalars], Lags]] = {
    "conv2d_fwd_s8": _conv2d_fwd,
    "dwconv2d_fwd_s8": _dwconv2d_fwd,
    "linear_fwd_s8": _linear_fwd_s8,
    "linear_fwd_s32": _linear_fwd_s32,
    "requant_fwd_s8": _x_to_y,
    "avgpool_fwd_s8": _pool_fwd,
    "maxpool_fwd_s8": _pool_fwd,
    "add_fwd_s8": _a_and_b_to_y,
    "mul_fwd_s8": _a_and_b_to_y,
    "minmax_fwd_s8": _a_and_b_to_y,
    "softmax_fwd_s8": _softmax_fwd,
    "lut_fwd_s8": _x_to_y,
    "prelu_fwd_s8": _x_to_y,
    "copy_s8": _copy,
    "conv2d_bwd_x_s8": _conv2d_bwd,
    "dwconv2d_bwd_x_s8": _dwconv2d_bwd,
    "linear_bwd_x_s8": _linear_bwd,
    "avgpool_bwd_x_s8": _pool_bwd,
    "maxpool_bwd_x_s8": _maxpool_bwd,
    "add_bwd_x_s8": _dy_to_dx,
    "sum_bwd_x_s8": _sum_bwd,
    "mul_bwd_a_s8": _dy_and_b_to_dx,
    "mul_bwd_b_s8": _mul_bwd_b,
    "minmax_bwd_x_s8": _minmax_bwd,
    "lut_bwd_x_s8": _dy_and_x_to_dx,
    "prelu_bwd_x_s8": _dy_and_x_to_dx,
    "softmax_bwd_x_s8": _dy_and_y_to_dx,
    "resize_bwd_x_s8": _tail,
}
_TABLE_RULES: Mapping[str, Callable[[_Scalars, _Rows], Lags]] = {"resize_fwd_s8": _resize_fwd, "resize_bwd_x_s8": _resize_bwd}
