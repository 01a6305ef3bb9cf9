"""Make watch_base.tflite: train a small net on nine people, quantize it to int8, and say what personalization can gain.

    python examples/watch/make_base.py        rewrites watch_base.tflite and model.json beside this file, about 3 minutes on one core

Needs torch 2.13 (CPU) and the extra `demo`; nothing else of mcugrad does. The steps, in the order of main():
cross_validate (nine nets, each without one of the nine) -> train -> fold -> calibrate -> quantize -> graph -> write_tflite.
Letters: N windows, T time, C channels, I inputs, O outputs, K taps.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import data
import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional

from mcugrad.exporter import write_tflite
from mcugrad.graph import Activation, AvgPool, Conv2D, DwConv2D, Graph, Linear, Op, Quant, Reshape, Softmax, Tensor

HERE = Path(__file__).resolve().parent
SEED = 0
STEPS = 1000
BATCH = 64
LEARNING_RATE = 3e-3
EPOCHS_ON_DEVICE = 10
LEARNING_RATE_ON_DEVICE = 0.1
SKIP_ON_DEVICE = 0.1
"""A sample whose largest |dL/dlogit| is below this changes nothing. These three were chosen by the mean over the nine people."""

LOGIT_HEADROOM = 1.5
"""Training on the device makes logits grow; the scale of the int8 logits leaves this much room before they saturate and tie."""

INPUT = Quant((1 / 128,), 0)


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """A layer over time: ``kind`` conv, dw or linear, I -> O channels, K taps, ``stride``, T inputs."""

    kind: str
    i: int
    o: int
    k: int = 1
    stride: int = 1
    t: int = 1

    @property
    def p(self) -> int:
        """Outputs of TensorFlow Lite's SAME padding."""
        return -(-self.t // self.stride)

    @property
    def pad(self) -> tuple[int, int]:
        """(before, after) in time of SAME padding."""
        total = max((self.p - 1) * self.stride + self.k - self.t, 0)
        return total // 2, total - total // 2

    @property
    def macs(self) -> int:
        return self.p * self.k * self.o * (1 if self.kind == "dw" else self.i)


def architecture() -> tuple[LayerSpec, ...]:
    """One 8-tap convolution, four depthwise-separable blocks, the head."""
    layers = [LayerSpec("conv", len(data.CHANNELS), 16, 8, 2, data.WINDOW)]
    for i, o, stride in ((16, 32, 2), (32, 32, 1), (32, 48, 2), (48, 48, 1)):
        layers.append(LayerSpec("dw", i, i, 5, stride, layers[-1].p))
        layers.append(LayerSpec("conv", i, o, 1, 1, layers[-1].p))
    return (*layers, LayerSpec("linear", 48, 7))


SPECS = architecture()
TRAINED_WEIGHTS = (6, 8, 9)
TRAINED_BIASES = (6, 7, 8, 9)
"""scheme.txt as indices into SPECS: the head, the last two pointwise weights, the last four biases."""


# ---- float training -----------------------------------------------------------------------------------------------------


class ConvNormRelu(nn.Module):
    """x (N,I,T) -> (N,O,P): convolution over time, batch norm, ReLU."""

    def __init__(self, spec: LayerSpec) -> None:
        super().__init__()
        self.pad = spec.pad
        self.conv = nn.Conv1d(spec.i, spec.o, spec.k, spec.stride, groups=spec.i if spec.kind == "dw" else 1, bias=False)
        self.norm = nn.BatchNorm1d(spec.o)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.norm(self.conv(functional.pad(x, self.pad))))


class FloatNet(nn.Module):
    """x (N,C,T) -> logits (N,7)."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(*(ConvNormRelu(spec) for spec in SPECS[:-1]))
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(SPECS[-1].i, SPECS[-1].o)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.drop(self.body(x).mean(2)))
        return logits


def draw_batch(
    recordings: Sequence[data.Recording], weights: npt.NDArray[np.float64], rng: np.random.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Windows cut anywhere in the recordings, each channel scaled by up to 15 % and given a little noise: x (N,C,T), y (N,)."""
    x = np.empty((BATCH, data.WINDOW, len(data.CHANNELS)), np.float32)
    y = np.empty(BATCH, np.int64)
    for n, pick in enumerate(rng.choice(len(recordings), BATCH, p=weights)):
        start = rng.integers(0, len(recordings[pick].x) - data.WINDOW + 1)
        x[n] = recordings[pick].x[start : start + data.WINDOW]
        y[n] = recordings[pick].label
    x *= rng.uniform(0.85, 1.15, (BATCH, 1, x.shape[2])).astype(np.float32)
    x += rng.normal(0, 0.02, (BATCH, 1, x.shape[2])).astype(np.float32)
    return to_input(x), torch.from_numpy(y)


def to_input(x: data.Floats) -> torch.Tensor:
    """(N,T,C) or (N,T,1,C) in units of FULL_SCALE -> (N,C,T), saturated and rounded as the int8 input is."""
    x = x.reshape(len(x), data.WINDOW, len(data.CHANNELS))
    return torch.from_numpy(np.clip(np.round(x * 128), -128, 127) / 128).float().transpose(1, 2)


def train(recordings: Sequence[data.Recording], seed: int = SEED) -> FloatNet:
    """AdamW with a one-cycle schedule on random windows of ``recordings``."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    net = FloatNet()
    optimizer = torch.optim.AdamW(net.parameters(), LEARNING_RATE, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=STEPS)
    lengths = np.array([len(r.x) for r in recordings], np.float64)
    for _ in range(STEPS):
        x, y = draw_batch(recordings, lengths / lengths.sum(), rng)
        loss = functional.cross_entropy(net(x), y, label_smoothing=0.05)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        schedule.step()
    return net.eval()


# ---- quantization -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class FloatLayer:
    """Batch norm folded: w (O,I/groups,K), b (O,)."""

    spec: LayerSpec
    w: torch.Tensor
    b: torch.Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Int8Layer:
    """w (O,I/groups,K) int8, its scale (O,) or (1,), b (O,) int32 with scale x · w, and the quantization of input and output."""

    spec: LayerSpec
    w: npt.NDArray[np.int8]
    w_scale: data.Floats
    b: npt.NDArray[np.int32]
    x: Quant
    y: Quant

    @property
    def b_scale(self) -> data.Floats:
        return np.float32(self.x.scale[0]) * self.w_scale


def apply(layer: LayerSpec, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """One layer in real numbers, ReLU included: x (N,I,T) or (N,I)."""
    if layer.kind == "linear":
        return functional.linear(x, w[:, :, 0], b)
    groups = layer.i if layer.kind == "dw" else 1
    return functional.relu(functional.conv1d(functional.pad(x, layer.pad), w, b, layer.stride, groups=groups))


def fold(net: FloatNet) -> tuple[FloatLayer, ...]:
    layers = []
    for spec, block in zip(SPECS, net.body, strict=False):
        assert isinstance(block, ConvNormRelu)
        norm = block.norm
        assert norm.running_mean is not None and norm.running_var is not None
        gain = norm.weight / torch.sqrt(norm.running_var + norm.eps)
        layers.append(FloatLayer(spec, (block.conv.weight * gain[:, None, None]).detach(), (norm.bias - norm.running_mean * gain).detach()))
    return (*layers, FloatLayer(SPECS[-1], net.head.weight.detach()[:, :, None], net.head.bias.detach()))


def calibrate(layers: Sequence[FloatLayer], x: torch.Tensor) -> tuple[Quant, ...]:
    """The output quantization of every layer from its range on the training windows x (N,C,T)."""
    found = []
    for layer in layers:
        if layer.spec.kind == "linear":
            x = x.mean(2)
        x = apply(layer.spec, x, layer.w, layer.b)
        low, high = float(x.min()), float(x.max())
        if layer.spec.kind == "linear":
            low, high = low * LOGIT_HEADROOM, high * LOGIT_HEADROOM
        scale = float(np.float32((high - low) / 255))
        found.append(Quant((scale,), round(-128 - low / scale)))
    return tuple(found)


def quantize(layers: Sequence[FloatLayer], outputs: Sequence[Quant]) -> tuple[Int8Layer, ...]:
    """Symmetric weights (per output channel, the head per tensor), bias in int32."""
    result: list[Int8Layer] = []
    x = INPUT
    for layer, y in zip(layers, outputs, strict=True):
        w = layer.w.numpy().astype(np.float64)
        peak = np.abs(w).max((1, 2)) if layer.spec.kind != "linear" else np.abs(w).max(keepdims=True)[0, 0]
        scale = (peak / 127).astype(np.float32)
        w_int = np.clip(np.round(w / scale[:, None, None]), -127, 127).astype(np.int8)
        b_int = np.round(layer.b.numpy() / (np.float32(x.scale[0]) * scale).astype(np.float64)).astype(np.int32)
        result.append(Int8Layer(layer.spec, w_int, scale, b_int, x, y))
        x = y
    return tuple(result)


# ---- the int8 net in torch: accuracy, and what training on the device will do -----------------------------------------------


class SimulatedNet(nn.Module):
    """The int8 net in real numbers. Weights and activations are rounded to their int8 grid; gradients pass straight through the
    rounding and stop where a value saturates."""

    def __init__(self, layers: Sequence[Int8Layer]) -> None:
        super().__init__()
        self.layers = layers
        self.scales = [torch.from_numpy(layer.w_scale)[:, None, None] for layer in layers]
        self.w = nn.ParameterList(torch.from_numpy(layer.w).float() * s for layer, s in zip(layers, self.scales, strict=True))
        self.b = nn.ParameterList(torch.from_numpy(layer.b * layer.b_scale.astype(np.float64)).float() for layer in layers)
        for parameters, trained in ((self.w, TRAINED_WEIGHTS), (self.b, TRAINED_BIASES)):
            for index, parameter in enumerate(parameters):
                parameter.requires_grad_(index in trained)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x (N,C,T) -> logits (N,7), not rounded: the loss on the device reads the int32 accumulators."""
        for layer, w, b, s in zip(self.layers, self.w, self.b, self.scales, strict=True):
            if layer.spec.kind == "linear":
                x = snap(x.mean(2) / layer.x.scale[0], 0, 255) * layer.x.scale[0]
            x = apply(layer.spec, x, snap(w / s, -127, 127) * s, b)
            if layer.spec.kind != "linear":
                x = snap(x / layer.y.scale[0], 0, 255) * layer.y.scale[0]
        return x

    def accuracy(self, samples: data.Samples) -> float:
        """Share of the windows whose largest int8 logit is the label's, in percent."""
        with torch.no_grad():
            y = self.layers[-1].y
            logits = torch.clamp(torch.round(self(to_input(samples.x)) / y.scale[0]) + y.zero_point, -128, 127)
        return percent_right(logits, samples.y)


def snap(x: torch.Tensor, low: float, high: float) -> torch.Tensor:
    clamped = torch.clamp(x, low, high)
    return clamped + (torch.round(clamped) - clamped).detach()


def percent_right(logits: torch.Tensor, y: data.Ints) -> float:
    return float((logits.argmax(1).numpy() == y).mean() * 100)


def float_accuracy(net: FloatNet, samples: data.Samples) -> float:
    with torch.no_grad():
        return percent_right(net(to_input(samples.x)), samples.y)


def personalize(
    layers: Sequence[Int8Layer], samples: data.Samples, epochs: int = EPOCHS_ON_DEVICE, lr: float = LEARNING_RATE_ON_DEVICE
) -> SimulatedNet:
    """Batch-1 SGD with a cosine learning rate, as the device does it but with float errors and gradients."""
    net = SimulatedNet(layers)
    trained = [p for p in net.parameters() if p.requires_grad]
    x, y = to_input(samples.x), torch.from_numpy(samples.y)
    rng = np.random.default_rng(SEED)
    order = np.concatenate([rng.permutation(len(y)) for _ in range(epochs)])
    for step, n in enumerate(order):
        logits = net(x[n : n + 1])
        peak = (torch.softmax(logits.detach(), 1)[0] - functional.one_hot(y[n], SPECS[-1].o)).abs().max()
        if peak < SKIP_ON_DEVICE:
            continue
        loss = functional.cross_entropy(logits, y[n : n + 1])
        rate = lr * 0.5 * (1 + math.cos(math.pi * step / len(order)))
        for parameter, gradient in zip(trained, torch.autograd.grad(loss, trained), strict=True):
            parameter.data -= rate * gradient
    return net


# ---- the graph ----------------------------------------------------------------------------------------------------------


class GraphBuilder:
    """Collects tensors and ops; ``add`` returns the index of a tensor."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.ops: list[Op] = []

    def add(self, name: str, shape: tuple[int, ...], quant: Quant, values: npt.NDArray[np.generic] | None = None) -> int:
        dtype = values.dtype if values is not None else np.dtype(np.int8)
        self.tensors.append(Tensor(name, shape, dtype, quant, values))
        return len(self.tensors) - 1

    def layer(self, name: str, layer: Int8Layer, x: int) -> int:
        """A layer with its weights in TensorFlow Lite's layout; returns its output."""
        spec, w_scale = layer.spec, tuple(float(s) for s in layer.w_scale)
        kind: Conv2D | DwConv2D | Linear
        shape: tuple[int, ...]
        if spec.kind == "linear":
            kind, w, axis, shape = Linear(Activation.NONE), layer.w[:, :, 0], 0, (1, spec.o)
        else:
            pad, shape = (spec.pad[0], 0, spec.pad[1], 0), (1, spec.p, 1, spec.o)
            if spec.kind == "conv":
                kind, w, axis = Conv2D((spec.stride, 1), (1, 1), pad, Activation.RELU), layer.w.transpose(0, 2, 1)[:, :, None, :], 0
            else:
                kind, w, axis = DwConv2D((spec.stride, 1), (1, 1), pad, 1, Activation.RELU), layer.w.transpose(1, 2, 0)[:, :, None, :], 3
        w_index = self.add(f"{name}/weights", w.shape, Quant(w_scale, 0, axis), np.ascontiguousarray(w))
        b_index = self.add(f"{name}/bias", layer.b.shape, Quant(tuple(float(s) for s in layer.b_scale)), layer.b)
        y_index = self.add(f"{name}/output", shape, layer.y)
        self.ops.append(Op(name, kind, (x, w_index, b_index), (y_index,)))
        return y_index

    def plain(self, name: str, kind: AvgPool | Reshape | Softmax, x: int, shape: tuple[int, ...], quant: Quant) -> int:
        y_index = self.add(f"{name}/output", shape, quant)
        self.ops.append(Op(name, kind, (x,), (y_index,)))
        return y_index


def build_graph(layers: Sequence[Int8Layer]) -> Graph:
    """Input (1,128,1,6) int8, output the softmax (1,7) with scale 1/256 and zero point -128."""
    builder = GraphBuilder()
    source = last = builder.add("input", (1, data.WINDOW, 1, len(data.CHANNELS)), INPUT)
    counters = {"conv": 0, "dw": 0, "linear": 0}
    for layer in layers:
        kind = layer.spec.kind
        if kind == "linear":
            height = SPECS[-2].p
            pool = AvgPool((height, 1), (height, 1), (0, 0, 0, 0), Activation.NONE)
            last = builder.plain("avgpool_0", pool, last, (1, 1, 1, layer.spec.i), layer.x)
            last = builder.plain("reshape_0", Reshape(), last, (1, layer.spec.i), layer.x)
        last = builder.layer(f"{'dwconv' if kind == 'dw' else kind}_{counters[kind]}", layer, last)
        counters[kind] += 1
    output = builder.plain("softmax_0", Softmax(1.0), last, (1, SPECS[-1].o), Quant((1 / 256,), -128))
    return Graph("watch_base", tuple(builder.tensors), tuple(builder.ops), source, output)


# ---- putting it together ------------------------------------------------------------------------------------------------


def make_int8(net: FloatNet, base: data.Samples) -> tuple[Int8Layer, ...]:
    layers = fold(net)
    return quantize(layers, calibrate(layers, to_input(base.x)))


def measure(net: FloatNet, layers: Sequence[Int8Layer], recordings: Sequence[data.Recording], person: int) -> dict[str, float]:
    """Accuracies on a person's test windows, in percent, before and after simulated training on the person's other windows."""
    _, train_on, test = data.split(recordings, person)
    _, early, late = data.split(recordings, person, data.halves_in_time)
    return {
        "float_before": round(float_accuracy(net, test), 2),
        "int8_before": round(SimulatedNet(layers).accuracy(test), 2),
        "simulated_after": round(personalize(layers, train_on).accuracy(test), 2),
        "in_time_int8_before": round(SimulatedNet(layers).accuracy(late), 2),
        "in_time_simulated_after": round(personalize(layers, early).accuracy(late), 2),
    }


def cross_validate(recordings: Sequence[data.Recording]) -> dict[str, dict[str, float]]:
    """For each person of ``recordings``, a net trained without that person, personalized to that person."""
    result = {}
    for person in sorted({r.subject for r in recordings}):
        net = train([r for r in recordings if r.subject != person])
        layers = make_int8(net, data.split(recordings, person)[0])
        result[str(person)] = measure(net, layers, recordings, person)
        print(f"without person {person}: {result[str(person)]}", flush=True)
    return result


def mean(folds: dict[str, dict[str, float]]) -> dict[str, float]:
    keys = next(iter(folds.values()))
    return {key: round(sum(fold[key] for fold in folds.values()) / len(folds), 2) for key in keys}


def main() -> None:
    parser = argparse.ArgumentParser(description="Train, quantize and write the base model of the demo.")
    parser.add_argument("--out", type=Path, default=HERE, help="folder of watch_base.tflite and model.json")
    out: Path = parser.parse_args().out
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    started = time.monotonic()
    recordings, classes = data.load_recordings()
    nine = [r for r in recordings if r.subject != data.NEW_WEARER]
    folds = cross_validate(nine)
    base, first, second = data.split(recordings)
    net = train(nine)
    layers = make_int8(net, base)
    content = write_tflite(build_graph(layers))
    report = {
        "sha256": hashlib.sha256(content).hexdigest(),
        "bytes": len(content),
        "macs": sum(spec.macs for spec in SPECS),
        "parameters": sum(layer.w.size + layer.b.size for layer in layers),
        "classes": list(classes),
        "seed": SEED,
        "wearer": data.NEW_WEARER,
        "wearer_rule": "the highest subject number, fixed before any accuracy was known",
        "windows": {"base": len(base.y), "new_wearer": len(first.y), "held_out": len(second.y)},
        "accuracy_base": {
            "float": round(float_accuracy(net, base), 2),
            "int8": round(SimulatedNet(layers).accuracy(base), 2),
        },
        "accuracy_wearer": measure(net, layers, recordings, data.NEW_WEARER),
        "on_device": {
            "epochs": EPOCHS_ON_DEVICE,
            "lr": LEARNING_RATE_ON_DEVICE,
            "schedule": "cosine",
            "skip": SKIP_ON_DEVICE,
            "train": (HERE / "scheme.txt").read_text().strip(),
        },
        "cross_validation_mean": mean(folds),
        "cross_validation": folds,
        "versions": {"python": platform.python_version(), **{name: version(name) for name in ("torch", "numpy", "seglearn")}},
    }
    out.mkdir(parents=True, exist_ok=True)
    (out / "watch_base.tflite").write_bytes(content)
    (out / "model.json").write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report, indent=2))
    print(f"{time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
