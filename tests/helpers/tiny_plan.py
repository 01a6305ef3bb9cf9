"""The smallest plan that trains: one linear head on ``inputs`` int8 values, softmax cross-entropy, Q8.8 weights and biases."""

from __future__ import annotations

import struct
import zlib

import numpy as np

from mcugrad.plan.codec import Interface, Region, encode, ref
from mcugrad.plan.opsdef import TYPES, kinds

CLASSES = 3


class _Region:
    """Bytes handed out in order, aligned to 16."""

    def __init__(self, region: Region) -> None:
        self.region = region
        self.bytes = bytearray()

    def put(self, data: bytes) -> int:
        self.bytes += bytes(-len(self.bytes) % 16)
        at = len(self.bytes)
        self.bytes += data
        return ref(self.region, at)

    def room(self, ctype: str, count: int = 1) -> int:
        return self.put(bytes(TYPES[ctype][0] * count))


def tiny_plan(inputs: int = 4, seed: int = 1, arena_extra: int = 0, sample: Region = Region.IO, af: int = 0) -> bytes:
    """A plan of 6 steps for samples of ``inputs`` bytes and 3 classes. ``arena_extra`` bytes of ARENA are never used.

    ``sample``: the region of the sample. ``af`` > 0: a plan for micro-batches, with two commit steps more.
    """
    arena, const, state, io = regions = tuple(_Region(r) for r in Region)
    kind = kinds()
    rng = np.random.default_rng(seed)
    x, args, result, y = regions[sample].room("int8_t", inputs), io.room("mg_args"), io.room("mg_result"), io.room("int8_t", CLASSES)
    logits, dy = arena.room("int32_t", CLASSES), arena.room("int8_t", CLASSES)
    unit, ry = arena.room("float"), arena.room("mg_exponent")
    start = rng.integers(-2000, 2000, CLASSES * inputs)
    wt = state.put(((start >> 8 << 8 if af else start) + 128).astype("<i2").tobytes())
    b = state.put(np.full(CLASSES, 128, "<i4").tobytes())
    random = state.put(struct.pack("<II", seed, 0))
    requants = const.put(struct.pack("<ii", 1 << 30, -4) * CLASSES)
    scales, rates = (const.put(np.full(CLASSES, v, "<f4").tobytes()) for v in (0.004, 3.0))
    bias_rates = const.put(np.full(CLASSES, 40.0, "<f4").tobytes())
    sizes = {"n": 1, "i": inputs, "it": inputs, "o": CLASSES}
    learn = {"dy": dy, "ry": ry, "unit": unit, "args": args}
    forward = kind["linear_fwd_s32"].pack({**sizes, "ws": 2, "bf": 8, "zx": -3, "x": x, "wf": 0, "wt": wt, "b": b, "y": logits})
    clamp = {"rounding": 0, "zy": 0, "lo": -128, "hi": 127}
    evaluate = kind["requant_fwd_s8"].pack({"n": 1, "o": CLASSES, **clamp, "x": logits, "rq": requants, "y": y})
    loss = kind["xent_s32"].pack(
        {"c": CLASSES, "x": logits, "scale": scales, "args": args, "dy": dy, "unit": unit, "ry": ry, "result": result}
    )
    backward = [
        kind["linear_upd_q16"].pack({**sizes, **learn, "af": af, "zx": -3, "x": x, "rate": rates, "wt": wt}),
        kind["bias_upd_s32"].pack({"n": 1, "o": CLASSES, "bf": 8, "af": af, **learn, "rate": bias_rates, "b": b}),
        kind["tick"].pack({"rng": random}),
    ]
    commit = []
    if af:
        commit.append(kind["commit_s16"].pack({"n": CLASSES * inputs, "af": af, "wt": wt}))
        commit.append(kind["commit_s32"].pack({"o": CLASSES, "bf": 8, "af": af, "b": b}))
    interface = Interface(
        arena_bytes=len(arena.bytes) + arena_extra,
        state_bytes=len(state.bytes),
        io_bytes=len(io.bytes),
        sample=x,
        sample_bytes=inputs,
        args=args,
        result=result,
        output=y,
        output_bytes=CLASSES,
        classes=CLASSES,
        rng=random,
        target=0,
        target_bytes=0,
        model_hash=0,
    )
    return encode(interface, [[forward], [evaluate], [loss], backward, commit], bytes(const.bytes), bytes(state.bytes))


def patched(plan: bytes, offset: int, value: int) -> bytes:
    """``plan`` with another u32 at ``offset`` of its header, and the right CRC for that."""
    out = bytearray(plan)
    struct.pack_into("<I", out, offset, value)
    struct.pack_into("<I", out, 16, zlib.crc32(out[20:]))
    return bytes(out)


def samples(n: int, inputs: int = 4, seed: int = 7) -> list[tuple[bytes, int, float]]:
    """``n`` samples that the plan can learn: the label is the largest of the first three inputs."""
    rng = np.random.default_rng(seed)
    x = rng.integers(-128, 128, (n, inputs)).astype(np.int8)
    return [(row.tobytes(), int(np.argmax(row[:CLASSES])), 0.02) for row in x]
