"""TensorFlow Lite Micro's interpreter as the oracle of one op, and the reference kernel of one step beside it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from tflite_micro import runtime

from mcugrad.graph.types import Activation, Quant
from mcugrad.lower import quant
from mcugrad.plan.opsdef import kinds
from mcugrad.ref.fixed import Array
from mcugrad.ref.memory import DTYPES
from mcugrad.ref.table import KERNELS

Rng = np.random.Generator
SEEDS = range(12)
ACTIVATIONS = tuple(Activation)


def oracle(model: bytes, *inputs: Array, output: int = 0) -> Array:
    """One output of a model, shaped."""
    interpreter = runtime.Interpreter.from_bytes(model, arena_size=1 << 20)
    for index, x in enumerate(inputs):
        interpreter.set_input(x, index)
    interpreter.invoke()
    out: npt.NDArray[np.int8] = interpreter.get_output(output).copy()
    return out


def run(name: str, scalars: Mapping[str, int], **given: Array) -> Array:
    """The output y of one reference kernel, flat; references that are not given are zero."""
    counts = kinds()[name].counts(scalars)
    arrays = {r.name: np.zeros(counts[r.name], DTYPES[r.type]) for r in kinds()[name].refs}
    for field, data in given.items():
        arrays[field][:] = data.reshape(-1)
    KERNELS[name](scalars, arrays)
    return arrays["y"]


def pick(rng: Rng, *choices: int) -> int:
    return int(rng.choice(choices))


def a_quant(rng: Rng, low: float = 0.002, high: float = 0.3) -> Quant:
    scale = float(np.float32(np.exp(rng.uniform(np.log(low), np.log(high)))))
    return Quant((scale,), pick(rng, -128, 127, 0, int(rng.integers(-128, 128))))


def int8(rng: Rng, *shape: int) -> npt.NDArray[np.int8]:
    return rng.integers(-128, 128, shape).astype(np.int8)


def weights(rng: Rng, *shape: int) -> npt.NDArray[np.int8]:
    return rng.integers(-127, 128, shape).astype(np.int8)


def scales(rng: Rng, n: int) -> tuple[float, ...]:
    return tuple(float(s) for s in np.exp(rng.uniform(np.log(1e-4), np.log(2e-2), n)).astype(np.float32))


def same_pad(size: int, taps: int, stride: int, dilation: int, out: int) -> int:
    return max((out - 1) * stride + (taps - 1) * dilation + 1 - size, 0) // 2


def window(rng: Rng) -> tuple[dict[str, int], dict[str, object]]:
    """Scalars of a random window, and the same as options of the builder."""
    r, s, sh, sw = (int(v) for v in rng.integers(1, (4, 5, 3, 4)))
    sh, sw = (1, 1) if rng.integers(2) else (sh, sw)
    dh, dw = (1, 1) if max(sh, sw) > 1 else (pick(rng, 1, 2, 3), pick(rng, 1, 2, 3))
    k = {"r": r, "s": s, "sh": sh, "sw": sw, "dh": dh, "dw": dw}
    padding = ("SAME", "VALID")[pick(rng, 0, 1)]
    return k, {"stride": (sh, sw), "dilation": (dh, dw), "padding": padding}


def place(k: dict[str, int], shape: tuple[int, ...], padding: object) -> None:
    """Output size and padding, from what the builder made of it."""
    k["p"], k["q"] = shape[1], shape[2]
    same = padding == "SAME"
    k["pt"] = same_pad(k["h"], k["r"], k["sh"], k.get("dh", 1), k["p"]) if same else 0
    k["pl"] = same_pad(k["w"], k["s"], k["sw"], k.get("dw", 1), k["q"]) if same else 0


def head(x: Quant, y: Quant, activation: Activation) -> dict[str, int]:
    lo, hi = quant.activation_range(activation, y.scale[0], y.zero_point)
    return {"ws": 1, "bf": 0, "zx": x.zero_point, "zy": y.zero_point, "lo": lo, "hi": hi, "rounding": 0}
