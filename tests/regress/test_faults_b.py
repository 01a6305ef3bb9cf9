"""Numeric faults that users of other systems met, on whole plans and on the command line.

The number is that of the project's list of faults, section B; test_faults_index.py says where each entry is tested.
"""

from __future__ import annotations

import json
import struct
import subprocess
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from e2e.conftest import MODEL
from helpers.cli import mcugrad
from helpers.graphs import GRAPHS, GraphBuilder, Int8, chain, output_int8, random_samples
from helpers.kinds import BODIES, with_op
from helpers.motions import CLASSES, write_motions
from helpers.tflite_builder import ModelBuilder
from helpers.tiny_graphs import oracle
from helpers.tiny_plan import samples as tiny_samples
from helpers.tiny_plan import tiny_plan
from kernels.harness import check, lay_out, reference
from mcugrad.data import load
from mcugrad.errors import PlanError
from mcugrad.graph import Activation, Quant
from mcugrad.importer import import_tflite
from mcugrad.lower import Options
from mcugrad.lower.read_back import apply_state
from mcugrad.native import NativeMachine
from mcugrad.paths import firmware_dir
from mcugrad.pipeline import Compiled, compile_graph
from mcugrad.plan.codec import HEADER_BYTES, Region, offset_of
from mcugrad.plan.opsdef import kinds
from mcugrad.proof import oracle as oracles
from mcugrad.proof.compare import whole_outputs
from mcugrad.ref import Machine
from mcugrad.ref.fixed import draw
from mcugrad.ref.memory import DTYPES
from mcugrad.ref.table import KERNELS
from mcugrad.training.resume import compile_for

Either = Machine | NativeMachine
BOTH = pytest.mark.parametrize("machine", [Machine, NativeMachine])
CHANNELS = (1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 33)


def same_steps(plan: bytes, samples: list[Int8], classes: int = 3, lr: float = 0.05) -> None:
    """C and reference: every output of every step, every result, STATE and prediction."""
    a, b = Machine(plan), NativeMachine(plan)
    a.tracing = b.tracing = True
    for k, x in enumerate(samples):
        assert a.train(x, k % classes, lr, 0.0) == b.train(x, k % classes, lr, 0.0)
        assert a.trace == b.trace and a.state == b.state, f"step {k}"
        assert np.array_equal(a.predict(x), b.predict(x)) and a.trace == b.trace
    assert a.state != a.plan.init


# ---- 27: the rounding belongs to the op ---------------------------------------------------------------------------------


def test_b27_every_forward_step_that_requantizes_has_its_rounding() -> None:
    """Softmax has one rounding in every runtime."""
    for name, kind in kinds().items():
        fields = {f.name for f in kind.scalars}
        scales = {"mult", "am", "pm"} & fields or any(ref.type == "mg_requant" for ref in kind.refs)
        if "_fwd_" in name and scales and name != "softmax_fwd_s8":
            assert "rounding" in fields, name


def test_b27_the_layer_oracle_runs_reference_kernels_without_a_delegate(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    def interpreter(**arguments: object) -> SimpleNamespace:
        given.update(arguments)
        return SimpleNamespace(allocate_tensors=lambda: None)

    module = SimpleNamespace(Interpreter=interpreter, OpResolverType=SimpleNamespace(BUILTIN_REF="reference"))
    monkeypatch.setattr(oracles, "need", lambda *_: module)
    oracles.LiteRtOracle(b"", chain())
    assert given["experimental_op_resolver_type"] == "reference" and "experimental_delegates" not in given


# ---- 28: the error of a convolution is a transposed convolution ---------------------------------------------------------


def error_by_loops(k: dict[str, int], dy: npt.NDArray[np.int64], w: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """dx (H, W, I): every product of the forward pass, the other way."""
    dx = np.zeros((k["h"], k["w"], k["i"]), np.int64)
    for p, q, r, s in np.ndindex(k["p"], k["q"], k["r"], k["s"]):
        y, x = p * k["sh"] - k["pt"] + r, q * k["sw"] - k["pl"] + s
        if 0 <= y < k["h"] and 0 <= x < k["w"]:
            dx[y, x] += dy[p, q] @ w[:, r, s, :]
    return dx


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_b28_no_row_of_a_convolutions_error_is_shifted(size: int, stride: int) -> None:
    """Also where the padding is no multiple of the stride, and where height and width differ in all of them."""
    rng = np.random.default_rng(10 * size + stride)
    for pt in (0, 1, 2):
        for pl in (0, 1, 2):
            k = {"h": 7, "w": 9, "i": 2, "o": 3, "g": 1, "it": 0, "r": size, "s": 1 + size % 4, "sh": stride, "sw": 1 + stride % 3}
            k |= {"dh": 1, "dw": 1, "pt": pt, "pl": pl}
            k |= {"p": (k["h"] + 2 * pt - k["r"]) // k["sh"] + 1, "q": (k["w"] + 2 * pl - k["s"]) // k["sw"] + 1}
            exact = {"mult": 2**30, "shift": 42, "skip_mult": 0, "skip_shift": 0, "lo": 0, "hi": 0, "ws": 1}
            exact |= {"has_skip": 0, "has_mask": 0, "has_bits": 0}
            given = {
                "dy": rng.integers(-7, 8, k["p"] * k["q"] * 3).astype(np.int8),
                "wf": rng.integers(-127, 128, 3 * k["r"] * k["s"] * 2).astype(np.int8),
                "fold": np.full(3, 32, np.uint8),
                "ry": np.zeros(1, DTYPES["mg_exponent"]),
                "rx": np.zeros(1, DTYPES["mg_exponent"]),
            }
            dx = check("conv2d_bwd_x_s8", k | exact, 1, given)["dx"]
            dy, w = (given[n].astype(np.int64) for n in ("dy", "wf"))
            acc = 32 * error_by_loops(k, dy.reshape(k["p"], k["q"], 3), w.reshape(3, k["r"], k["s"], 2)).ravel()
            assert np.array_equal(dx, np.clip((acc + 2**11) >> 12, -127, 127)), k
            assert dx.any()


# ---- 30: nothing that is computed from weights is stale after a step ----------------------------------------------------


@pytest.mark.parametrize("ws", [1, 2])
@pytest.mark.parametrize("name", sorted(GRAPHS))
def test_b30_after_each_of_ten_steps_the_forward_pass_is_that_of_the_new_weights(name: str, ws: int) -> None:
    graph = GRAPHS[name](2)
    compiled = compile_graph(graph, "all", Options(ws=ws, seed=3))
    machine = NativeMachine(compiled.plan)
    *samples, probe = random_samples(graph, 11, 4)
    for k, x in enumerate(samples):
        before = machine.state
        machine.train(x, k % 3, 0.05, 0.0)
        assert machine.state != before
        trained = apply_state(graph, compiled.program, compiled.layout, machine.state)
        assert np.array_equal(machine.predict(probe), output_int8(trained, probe)), f"step {k}"


# ---- 31: sizes at which vector kernels have their tails -----------------------------------------------------------------


@pytest.mark.parametrize("channels", CHANNELS)
def test_b31_every_number_of_channels(channels: int) -> None:
    """Convolution, depthwise, pointwise and linear layer of as many channels, forward, backward and update."""
    b = GraphBuilder((1, 5, 4, channels), channels, samples=2)
    y = b.conv(b.input, channels, activation=Activation.RELU)
    y = b.point(b.dwconv(y), channels)
    graph = b.finish(b.linear(b.linear(b.mean(y), channels), 3))
    same_steps(compile_graph(graph, "all").plan, random_samples(graph, 2))


@pytest.mark.parametrize("batch", [1, 2, 3])
@pytest.mark.parametrize("channels", CHANNELS)
def test_b31_every_batch_of_a_linear_layer(channels: int, batch: int) -> None:
    b = GraphBuilder((batch, channels), channels, samples=2)
    y = b.linear(b.input, channels, activation=Activation.RELU)
    graph = b.finish(b.linear(b.reshape(b.linear(y, 5), (1, 5 * batch)), 3))
    same_steps(compile_graph(graph, "all").plan, random_samples(graph, 2))


# ---- 32: average pools ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [(1, 2), (2, 2), (3, 1), (3, 3), (7, 1), (7, 7), (49, 1)])
@pytest.mark.parametrize("form", ["pool", "mean"])
def test_b32_pools_at_the_ends_and_at_halves(window: tuple[int, int], form: str) -> None:
    m = ModelBuilder()
    shape = (1, *window, 2) if form == "mean" else (1, window[0] + 1, window[1] + 2, 2)
    x = m.tensor("x", shape, quant=Quant((0.05,), -3))
    y = m.mean(x, Quant((0.05,), -3)) if form == "mean" else m.avgpool(x, window)
    data = m.finish([x], [y])
    rng = np.random.default_rng(32)
    odd = [rng.integers(-9, 0, shape).astype(np.int8) for _ in range(6)]
    halves = np.where(np.arange(np.prod(shape)).reshape(shape) // 2 % 2, -1, -2).astype(np.int8)
    inputs = [np.full(shape, 127, np.int8), np.full(shape, -128, np.int8), np.full(shape, -1, np.int8), halves, *odd]
    plan = compile_graph(import_tflite(data, "m"), None).plan
    for sample, expected in zip(inputs, oracle(data, list(inputs)), strict=True):
        for machine in (Machine(plan), NativeMachine(plan)):
            assert np.array_equal(machine.predict(sample), expected.ravel())


# ---- 37: the loss of logits that are far apart ----------------------------------------------------------------------------


@pytest.mark.parametrize("label", [0, 1, 2])
@pytest.mark.parametrize(
    ("logits", "scale"),
    [((-431, 279, 427), 1.0), ((-460, 0, 378), 1.0), ((-127, 0, 127), 3.0), ((127, 127, -127), 3.0), ((127, -127, 127), 3.0)],
)
def test_b37_loss_and_gradient_of_extreme_logits_are_finite(logits: tuple[int, ...], scale: float, label: int) -> None:
    given = {
        "x": np.array(logits, np.int32),
        "scale": np.full(3, scale, np.float32),
        "args": np.array([(0.01, 0.0, label, 0)], DTYPES["mg_args"]),
    }
    a = check("xent_s32", {"c": 3}, 1, given)
    real = np.array(logits) * scale
    assert np.isfinite(a["result"]["loss"][0]) and np.isfinite(a["unit"][0])
    expected = real.max() - real[label] + np.log(np.exp(real - real.max()).sum())
    assert a["result"]["loss"][0] == pytest.approx(expected, rel=1e-5, abs=1e-6)
    assert abs(int(a["dy"].astype(int).sum())) <= 1


# ---- 39: updates that are rounded to zero ----------------------------------------------------------------------------------


def moved(kind: str, step: float, count: int) -> npt.NDArray[np.float64]:
    """How far 256 weights have gone, in LSB, after ``count`` updates of ``step`` LSB each."""
    size, wt = {"n": 1, "i": 16, "it": 16, "o": 16, "zx": 0}, np.zeros(256, np.int8 if kind == "sr8" else np.int16)
    given = {
        "dy": np.full(16, -127, np.int8),
        "x": np.full(16, 100, np.int8),
        "ry": np.zeros(1, DTYPES["mg_exponent"]),
        "unit": np.ones(1, np.float32),
        "args": np.array([(1, 0, 0, 0)], DTYPES["mg_args"]),
        "rate": np.full(16, step / 12700, np.float32),
        "rng": np.array([(11, 0)], DTYPES["mg_rng"]),
        "wt": wt,
    }
    name = f"linear_upd_{kind}"
    scalars = size | ({"stream": 1} if kind == "sr8" else {"af": 0})
    check(name, scalars, 1, given)
    _, arrays = reference(lay_out(name, scalars, 1, given))
    arrays["wt"][:] = 0
    for tick in range(count):
        if kind == "sr8":
            arrays["rng"]["tick"] = tick
        KERNELS[name](scalars, arrays)
    return np.asarray(arrays["wt"], np.float64) / (1 if kind == "sr8" else 256)


def test_b39_stochastic_rounding_adds_up_what_rounding_to_nearest_loses() -> None:
    """1000 updates of 0.01 LSB of an int8 weight; 0.001 LSB is below half a step of a Q8.8 weight."""
    assert not moved("q16", 0.001, 1000).any()
    assert abs(moved("sr8", 0.01, 1000).mean() - 10) < 3 * (1000 * 0.01 * 0.99 / 256) ** 0.5
    assert abs(moved("q16", 0.01, 1000).mean() - 10) < 2


@dataclass(frozen=True, slots=True)
class Motions:
    """A folder with windows to learn and others."""

    folder: Path
    train: Path
    held_out: Path


@pytest.fixture(scope="module")
def motions(tmp_path_factory: pytest.TempPathFactory) -> Motions:
    folder = tmp_path_factory.mktemp("motions")
    return Motions(folder, write_motions(folder / "train.npz", 56, 1), write_motions(folder / "held_out.npz", 35, 2))


def trained(motions: Motions, *options: str | float) -> tuple[dict[str, Any], Path]:
    out = motions.folder / "trained.tflite"
    files = ("--data", motions.train, "--eval", motions.held_out, "--board", "host", "--classes", CLASSES, "--out", out)
    return mcugrad("train", MODEL, *files, "--json", *options).result, out


@pytest.mark.parametrize("rounding", ["residual", "stochastic"])
def test_b39_a_run_whose_updates_are_rounded_to_zero_says_so(motions: Motions, rounding: str) -> None:
    scheme = ("--train", "weights:linear_0,weights:conv_4", "--rounding", rounding, "--epochs", 1)
    result, _ = trained(motions, *scheme, "--lr", 1e-9)
    assert result["unchanged_weights"] == {"layers": {"conv_4": 1.0, "linear_0": 1.0}, "total": 1.0}
    note = next(n for n in result["notes"] if "did not move" in n)
    assert "100 % of the trained weights" in note and "larger --lr" in note
    assert ("--rounding residual" in note) == (rounding == "stochastic")
    result, _ = trained(motions, *scheme, "--lr", 0.02)
    assert 0 < result["unchanged_weights"]["total"] < 0.99
    assert not any("did not move" in n for n in result["notes"])


def test_b39_a_run_that_trains_no_weights_has_none_to_count(motions: Motions) -> None:
    result, _ = trained(motions, "--train", "bias:1", "--epochs", 1)
    assert result["unchanged_weights"] == {"layers": {}, "total": None}


# ---- 40: the stream of random numbers ---------------------------------------------------------------------------------------


def test_b40_no_two_steps_or_tensors_draw_the_same() -> None:
    draws = {draw(7, tick, stream, 8).tobytes() for tick in range(50) for stream in range(20)}
    assert len(draws) == 1000
    assert draw(7, 3, 2, 8).tobytes() != draw(8, 3, 2, 8).tobytes()


def test_b40_one_seed_is_one_run_here_and_in_c_and_a_restored_run_draws_on() -> None:
    graph = chain(4)
    samples = random_samples(graph, 6)

    def run(machine: Either, first: int = 0) -> bytes:
        for k, x in list(enumerate(samples))[first:]:
            machine.train(x, k % 3, 0.02, 0.0)
        return machine.state

    plans = [compile_graph(graph, "all", Options(ws=1, seed=seed)).plan for seed in (5, 5, 6)]
    states = [run(make(plan)) for plan in plans for make in (Machine, NativeMachine)]
    assert len(set(states[:4])) == 1 and states[4] == states[5]
    weights = [s[8:] for s in (states[0], states[4])]
    assert weights[0] != weights[1]
    half = NativeMachine(plans[0])
    for k, x in enumerate(samples[:3]):
        half.train(x, k % 3, 0.02, 0.0)
    resumed = NativeMachine(plans[0])
    resumed.state = half.state
    assert tick(resumed) == 3
    assert run(resumed, 3) == states[0]


def tick(machine: Either) -> int:
    """Updates so far, as STATE counts them."""
    at = offset_of(machine.plan.header.rng)
    return int(struct.unpack_from("<II", machine.state, at)[1])


# ---- 43: predictions, not losses -----------------------------------------------------------------------------------------------


def test_b43_board_and_reference_have_one_confusion_matrix_for_a_checkpoint(motions: Motions) -> None:
    result, out = trained(motions, "--train", "head", "--epochs", 2, "--lr", 0.02)
    checkpoint = out.with_suffix(".ckpt")
    found = mcugrad("eval", MODEL, "--checkpoint", checkpoint, "--data", motions.held_out, "--board", "host", "--json").result
    compiled, state = compile_for(MODEL, checkpoint)
    machine, data = Machine(compiled.plan), load(motions.held_out, compiled.model)
    machine.state = state
    assert data.y is not None
    confusion = np.zeros((CLASSES, CLASSES), int)
    for x, label in zip(data.x, data.y, strict=True):
        confusion[label, np.argmax(machine.predict(x))] += 1
    assert found["confusion"] == confusion.tolist()
    assert found["accuracy"] == np.trace(confusion) / len(data.x) == result["accuracy"]["after"]


# ---- 44: accumulation ------------------------------------------------------------------------------------------------------------


@BOTH
def test_b44_every_sample_that_is_not_skipped_is_one_update(machine: type[Either]) -> None:
    """Without a batch there is no window that could be scaled wrongly or left over at the end."""
    m = machine(tiny_plan())
    updates = 0
    for x, label, lr in tiny_samples(30):
        before = m.state
        skipped = m.train(np.frombuffer(x, np.int8), label, lr, 0.5).skipped
        updates += not skipped
        assert (m.state == before) == skipped and tick(m) == updates
    assert 0 < updates < 30


def sums_of(machine: Either) -> npt.NDArray[np.int64]:
    """What a tiny plan for micro-batches has below its 24 weights and 3 biases: one byte each."""
    state = machine.state
    words = np.frombuffer(state[:48], "<i2"), np.frombuffer(state[48:60], "<i4")
    return np.concatenate([(w & 255).astype(np.int64) - 128 for w in words])


@BOTH
def test_b44_a_batch_of_four_is_four_batches_of_one_and_nothing_is_left_over(machine: type[Either]) -> None:
    """In whole units of the sums, whatever the order; a last batch of fewer samples is committed like a whole one."""
    m, data = machine(tiny_plan(8, af=5)), [(np.frombuffer(x, np.int8), label) for x, label, _ in tiny_samples(4, 8)]
    alone = []
    for x, label in data:
        m.reset()
        m.train(x, label, 0.002, 0.0)
        alone.append(sums_of(m))
    assert all(s.any() for s in alone) and np.abs(alone).sum(axis=0).max() < 128
    for order in ((0, 1, 2, 3), (3, 1, 0, 2), (2, 1)):
        m.reset()
        for k in order:
            m.train(*data[k], 0.002, 0.0)
        total = sum(alone[k] for k in order)
        assert np.array_equal(sums_of(m), total)
        m.commit()
        assert np.array_equal(sums_of(m), total - ((total + 16) >> 5 << 5))


@BOTH
def test_b44_the_rate_of_a_batch_goes_with_the_mean(machine: type[Either]) -> None:
    """The same sample eight times at an eighth of the rate is that sample once, but for half a unit of rounding each time."""
    m, (x, label, _) = machine(tiny_plan(8, af=5)), tiny_samples(1, 8)[0]
    sample = np.frombuffer(x, np.int8)
    m.train(sample, label, 0.008, 0.0)
    once = sums_of(m)
    m.reset()
    for _ in range(8):
        m.train(sample, label, 0.008 / 8, 0.0)
    assert np.abs(once).max() > 20 and np.abs(sums_of(m) - once).max() <= 4.5


# ---- 45: tables, and lengths beyond 16 bits ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("ws", [1, 2])
def test_b45_a_hundred_steps_leave_the_plan_as_it_was_and_can_be_repeated(ws: int) -> None:
    graph = GRAPHS["mixed"](3)
    machine = NativeMachine(compile_graph(graph, "all", Options(ws=ws)).plan)
    crc = zlib.crc32(machine._plan_bytes)
    samples, first = random_samples(graph, 10), machine.state

    def losses() -> list[float]:
        return [machine.train(samples[k % 10], k % 4, 0.02, 0.0).loss for k in range(100)]

    once, last = losses(), machine.state
    assert zlib.crc32(machine._plan_bytes) == crc
    machine.state = first
    assert losses() == once and machine.state == last and last != first
    assert zlib.crc32(machine._plan_bytes) == crc


def test_b45_a_tensor_of_more_than_65535_bytes() -> None:
    b = GraphBuilder((1, 92, 90, 1), 3, samples=1)
    y = b.dwconv(b.point(b.input, 9), stride=(2, 2), activation=Activation.RELU)
    graph = b.finish(b.linear(b.mean(y), 3))
    compiled = compile_graph(graph, "all")
    assert max(v.nbytes for v in compiled.layout.offsets) == 92 * 90 * 9 > 65535
    same_steps(compiled.plan, random_samples(graph, 2))


# ---- 48: one kind for another ------------------------------------------------------------------------------------------------------

CALL = """#include "plan.h"
void f(const struct mg_ctx *ctx, const struct mg_step_{record} *k);
void f(const struct mg_ctx *ctx, const struct mg_step_{record} *k) {{ mg_{kernel}(ctx, k); }}
"""


@pytest.mark.parametrize(("record", "right"), [("lut_fwd_s8", True), ("maxpool_fwd_s8", False), ("linear_fwd_s8", False)])
def test_b48_the_record_of_another_kind_does_not_compile(record: str, right: bool) -> None:
    include = [f"-I{firmware_dir() / folder}" for folder in ("include", "core")]
    command = ["cc", "-std=c11", "-fsyntax-only", "-Werror", *include, "-x", "c", "-"]
    done = subprocess.run(command, input=CALL.format(record=record, kernel="lut_fwd_s8"), capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == right, done.stderr
    assert right or "incompatible" in done.stderr


@BOTH
def test_b48_the_code_of_another_kind_is_refused_at_init(machine: type[Either]) -> None:
    plan = tiny_plan()
    for kind in kinds().values():
        if kind.code == plan[HEADER_BYTES]:
            continue
        other = bytearray(plan)
        struct.pack_into("<H", other, HEADER_BYTES, kind.code)
        struct.pack_into("<I", other, 16, zlib.crc32(other[20:]))
        with pytest.raises(PlanError):
            machine(bytes(other))


# ---- 49: activations that are stuck --------------------------------------------------------------------------------------------------


def test_b49_a_run_notes_a_layer_that_is_stuck(motions: Motions) -> None:
    """A head of which nothing is trained says nothing; a trained one does."""
    stuck, _ = trained(motions, "--train", "weights:conv_4", "--epochs", 1)
    assert [n for n in stuck["notes"] if n.startswith("linear_0 puts out ")]
    log = json.loads((motions.folder / "trained.jsonl").read_text().splitlines()[-1])
    assert log["event"] == "end" and log["notes"] == stuck["notes"]
    good, _ = trained(motions, "--train", "head", "--epochs", 2, "--lr", 0.02)
    assert good["notes"] == []


# ---- 50: bytes that nobody writes ----------------------------------------------------------------------------------------------------


def poisoned(machine: Either, fill: int, samples: list[Int8], compiled: Compiled) -> list[object]:
    """Everything that three training steps and predictions leave, each run with ARENA and IO full of ``fill``."""
    forward, evaluate, loss, backward, _ = (len(s) for s in compiled.program.segments)
    training = [*range(forward), *range(forward + evaluate, forward + evaluate + loss + backward)]
    predicting = list(range(forward + evaluate))
    seen: list[object] = []
    machine.state = machine.plan.init

    def run(step: Callable[[], object], executed: list[int]) -> None:
        for region in (Region.ARENA, Region.IO):
            machine.regions[region][:] = fill
        result, crc = step(), dict(zip(executed, machine.trace, strict=True))
        seen.extend((result, [crc[k] for k in whole_outputs(compiled, executed)], machine.state))

    for k, x in enumerate(samples):
        run(lambda k=k, x=x: machine.train(x, k % 3, 0.05, 0.0), training)
        run(lambda x=x: machine.predict(x).tobytes(), predicting)
    return seen


@pytest.mark.parametrize("ws", [1, 2])
@pytest.mark.parametrize("name", sorted(GRAPHS))
def test_b50_no_output_depends_on_what_was_in_memory(name: str, ws: int) -> None:
    graph = GRAPHS[name](6)
    compiled, samples = compile_graph(graph, "all", Options(ws=ws)), random_samples(graph, 3)
    runs = []
    for machine in (Machine(compiled.plan), NativeMachine(compiled.plan)):
        machine.tracing = True
        runs += [poisoned(machine, fill, samples, compiled) for fill in (0x55, 0xAA)]
    assert all(run == runs[0] for run in runs)
    assert len({run for run in runs[0][3::6]}) > 1, "the output never changes"


def test_b50_every_kind_of_op() -> None:
    for body in BODIES:
        compiled = compile_graph(with_op(body), "all")
        machine = NativeMachine(compiled.plan)
        machine.tracing = True
        samples = random_samples(compiled.model, 2)
        assert poisoned(machine, 0x55, samples, compiled) == poisoned(machine, 0xAA, samples, compiled), body
