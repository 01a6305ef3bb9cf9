"""expand_dwconv2d: conv2d of 1x1 and the dwconv2d behind it. SPEC.md 3.2.

Letters: x (H,W,I), e (H,W,O) between the two, y (P,Q,O), we (O,I), wd (O,R,S). What is left in ``scratch`` is specified too: a trace is
the CRC of all that a step wrote.
"""

from __future__ import annotations

import numpy as np

from mcugrad.ref.conv2d import conv2d_fwd_s8
from mcugrad.ref.dwconv2d import dwconv2d_fwd_s8
from mcugrad.ref.fixed import Array, i64
from mcugrad.ref.memory import Arrays, Scalars

LANES = 4


def expand_dwconv2d_fwd_s8(k: Scalars, a: Arrays) -> None:
    e = np.zeros(k["h"] * k["w"] * k["o"], np.int8)
    none = np.zeros(0, np.int8)
    point = dict.fromkeys(("r", "s", "sh", "sw", "dh", "dw", "g", "ws"), 1) | dict.fromkeys(("it", "pt", "pl"), 0)
    first = {**k, **point, "p": k["h"], "q": k["w"], "bf": k["bef"], "zy": k["ze"], "lo": k["elo"], "hi": k["ehi"]}
    conv2d_fwd_s8(first, {"x": a["x"], "wf": a["we"], "wt": none, "b": a["be"], "rq": a["rqe"], "y": e})
    second = {**k, "i": k["o"], "m": 1, "ot": 0, "ws": 1, "bf": k["bdf"], "zx": k["ze"]}
    dwconv2d_fwd_s8(second, {"x": e, "wf": a["wd"], "wt": none, "b": a["bd"], "rq": a["rqd"], "y": a["y"]})
    a["scratch"][:] = _ring(k, e.reshape(k["h"], k["w"], k["o"])).reshape(-1)


def _ring(k: Scalars, e: Array) -> Array:
    """(K,4,V): of every four channels, one group after the other, the rows of e - ze as the windows come to need them."""
    rows, cols = (k["r"] - 1) * k["dh"] + 1, (k["q"] - 1) * k["sw"] + (k["s"] - 1) * k["dw"] + 1
    ring = np.zeros((rows, LANES, cols), np.int16)
    left = min(k["pl"], cols)
    width = min(cols - left, k["w"])
    for first in range(0, k["o"], LANES):
        channels = np.minimum(np.arange(first, first + LANES), k["o"] - 1)
        ready = 0
        for p in range(k["p"]):
            top = p * k["sh"] - k["pt"]
            for h in range(max(ready, top), min(top + rows, k["h"])):
                ring[h % rows, :, left : left + width] = (i64(e[h, :width, channels]) - k["ze"]).reshape(LANES, width)
                ready = h + 1
    return ring
