"""The smallest plan with a regression loss: an autoencoder of one linear layer, its output longer than a PREDICT reply carries."""

from __future__ import annotations

import struct

import numpy as np

from helpers.tiny_plan import _Region
from mcugrad.plan.codec import Interface, Region, encode
from mcugrad.plan.opsdef import kinds

STEP = 0.05


def tiny_regression(inputs: int = 4, outputs: int = 100, seed: int = 1) -> bytes:
    """A plan of 5 steps: ``inputs`` bytes to ``outputs`` bytes, mean squared error against a target of as many bytes."""
    arena, const, state, io = (_Region(r) for r in Region)
    kind = kinds()
    rng = np.random.default_rng(seed)
    args, result, x = io.room("mg_args"), io.room("mg_result"), io.room("int8_t", inputs)
    target, y = io.room("int8_t", outputs), io.room("int8_t", outputs)
    dy, unit, ry = arena.room("int8_t", outputs), arena.room("float"), arena.room("mg_exponent")
    wt = state.put(rng.integers(-8000, 8000, outputs * inputs).astype("<i2").tobytes())
    b = state.put(np.full(outputs, 128, "<i4").tobytes())
    random = state.put(struct.pack("<II", seed, 0))
    requants = const.put(struct.pack("<ii", 1 << 30, -4) * outputs)
    rates, bias_rates = (const.put(np.full(outputs, v, "<f4").tobytes()) for v in (3.0, 40.0))
    sizes = {"n": 1, "i": inputs, "it": inputs, "o": outputs}
    learn = {"dy": dy, "ry": ry, "unit": unit, "args": args}
    numbers = {"ws": 2, "bf": 8, "rounding": 0, "zx": 0, "zy": 0, "lo": -128, "hi": 127}
    forward = kind["linear_fwd_s8"].pack({**sizes, **numbers, "x": x, "wf": 0, "wt": wt, "b": b, "rq": requants, "y": y})
    places = {"x": y, "target": target, "args": args, "dy": dy, "unit": unit, "ry": ry, "result": result}
    loss = kind["mse_s8"].pack({"sx": STEP, "st": STEP, "n": outputs, "zx": 0, "zt": 0, **places})
    backward = [
        kind["linear_upd_q16"].pack({**sizes, **learn, "af": 0, "zx": 0, "x": x, "rate": rates, "wt": wt}),
        kind["bias_upd_s32"].pack({"n": 1, "o": outputs, "bf": 8, "af": 0, **learn, "rate": bias_rates, "b": b}),
        kind["tick"].pack({"rng": random}),
    ]
    interface = Interface(
        arena_bytes=len(arena.bytes),
        state_bytes=len(state.bytes),
        io_bytes=len(io.bytes),
        sample=x,
        sample_bytes=inputs,
        args=args,
        result=result,
        output=y,
        output_bytes=outputs,
        classes=1,
        rng=random,
        target=target,
        target_bytes=outputs,
        model_hash=0,
    )
    return encode(interface, [[forward], [], [loss], backward, []], bytes(const.bytes), bytes(state.bytes))


def pairs(n: int, inputs: int = 4, outputs: int = 100, seed: int = 7) -> list[tuple[bytes, bytes]]:
    """``n`` samples and their targets."""
    rng = np.random.default_rng(seed)
    return [(rng.integers(-128, 128, inputs, np.int8).tobytes(), rng.integers(-128, 128, outputs, np.int8).tobytes()) for _ in range(n)]
