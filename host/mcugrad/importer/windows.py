"""Output sizes and paddings of windows: the one place that knows TensorFlow's SAME and VALID."""

from __future__ import annotations

Pads = tuple[int, int, int, int]
"""(top, left, bottom, right)"""


def extent(kernel: int, dilation: int) -> int:
    """Pixels that a kernel of ``kernel`` taps spans."""
    return (kernel - 1) * dilation + 1


def same_pads(size: tuple[int, int], kernel: tuple[int, int], stride: tuple[int, int], dilation: tuple[int, int]) -> Pads:
    """TensorFlow's SAME: as many outputs as ceil(size / stride); an odd pad goes to the bottom and to the right."""
    before, after = [], []
    for n, k, s, d in zip(size, kernel, stride, dilation, strict=True):
        total = max((-(-n // s) - 1) * s + extent(k, d) - n, 0)
        before.append(total // 2)
        after.append(total - total // 2)
    return before[0], before[1], after[0], after[1]


def window_outputs(
    size: tuple[int, int], kernel: tuple[int, int], stride: tuple[int, int], dilation: tuple[int, int], pad: Pads
) -> tuple[int, int]:
    """Outputs (P, Q) of a window that slides over an input of ``size`` with explicit pads; not positive where it does not fit."""
    p = (size[0] + pad[0] + pad[2] - extent(kernel[0], dilation[0])) // stride[0] + 1
    q = (size[1] + pad[1] + pad[3] - extent(kernel[1], dilation[1])) // stride[1] + 1
    return p, q
