"""Micro-batches: plans whose updates are summed up and committed later, in the reference and in the C library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from helpers.graphs import GRAPHS, chain, mixed, random_samples, with_data
from mcugrad.errors import UsageError
from mcugrad.lower import Options
from mcugrad.lower.program import Value
from mcugrad.lower.weights import bias_sum_bits
from mcugrad.native import NativeMachine
from mcugrad.pipeline import Compiled, compile_graph
from mcugrad.plan import decode
from mcugrad.ref import Machine
from mcugrad.training.recipe import Recipe

Ints = npt.NDArray[np.int64]
Array = npt.NDArray[Any]
Either = Machine | NativeMachine
BOTH = pytest.mark.parametrize("machine", [Machine, NativeMachine])


def batch_plan(name: str = "chain", batch: int = 4) -> Compiled:
    return compile_graph(GRAPHS[name](3), "all", Options(batch=batch))


def stored(compiled: Compiled, value: Value, state: bytes) -> Ints:
    """int16 or int32 of one value in STATE."""
    at = compiled.layout.offsets[value]
    return np.frombuffer(state[at : at + value.nbytes], "<i2" if ".w" in value.name else "<i4").astype(np.int64)


def learn(machine: Either, samples: list[npt.NDArray[np.int8]], lr: float) -> None:
    for k, x in enumerate(samples):
        machine.train(x, k % 3, lr, 0.0)


# ---- what a batch is, computed a second time ------------------------------------------------------------------------------


@dataclass
class Sums:
    """The sums below all trained tensors as this file computes them: label and kind -> one int64 for each element, in units of 2^-af."""

    compiled: Compiled
    totals: dict[tuple[str, str], Ints] = field(default_factory=dict)
    saturated: int = 0

    def observe(self, index: int, kind: str, arrays: Mapping[str, Array]) -> None:
        if "_upd_" not in kind:
            return
        step = self.compiled.program.steps[index]
        k = {name: int(v) for name, v in step.scalars.items()}
        a = {name: np.array(v) for name, v in arrays.items()}
        dw = gradient(kind, k, a)
        unit = np.float32(a["args"]["lr"][0]) * np.float32(a["unit"][0])
        factor = (unit * a["rate"][: len(dw)]).astype(np.float64)[:, None]
        exact = dw * factor * 2.0 ** (int(a["ry"]["r"][0]) + k["af"])
        whole = np.floor(exact)
        rounded = (whole + (exact - whole >= 0.5)).astype(np.int64).ravel()
        half = 128 if kind.endswith("q16") else 2 ** (k["bf"] - 1)
        key = step.label, kind.rpartition("_")[2]
        total = self.totals.get(key, np.zeros(rounded.size, np.int64)) - rounded
        self.saturated += int(((total < -half) | (total > half - 1)).sum())
        self.totals[key] = np.clip(total, -half, half - 1)


def gradient(kind: str, k: Mapping[str, int], a: Mapping[str, Array]) -> npt.NDArray[np.float64]:
    """dW or db, (O, …) as rows, from the error and the input of an update step."""
    dy = a["dy"].astype(np.float64)
    if kind == "bias_upd_s32":
        return dy.reshape(k["n"], k["o"]).sum(axis=0)[:, None]
    x = a["x"].astype(np.float64) - k["zx"]
    if kind == "linear_upd_q16":
        return dy.reshape(k["n"], k["o"]).T @ x.reshape(k["n"], k["i"])[:, : k["it"]]
    dy, x = dy.reshape(k["p"], k["q"], k["o"]), x.reshape(k["h"], k["w"], -1)
    depthwise = kind == "dwconv2d_upd_q16"
    out = np.zeros((k["ot"], k["r"], k["s"], 1) if depthwise else (k["o"], k["r"], k["s"], k["it"]))
    for r, s, p, q in np.ndindex(k["r"], k["s"], k["p"], k["q"]):
        h, w = p * k["sh"] + r * k["dh"] - k["pt"], q * k["sw"] + s * k["dw"] - k["pl"]
        if not (0 <= h < k["h"] and 0 <= w < k["w"]):
            continue
        if depthwise:
            out[:, r, s, 0] += dy[p, q, : k["ot"]] * x[h, w, np.arange(k["ot"]) // k["m"]]
        else:
            out[:, r, s] += np.outer(dy[p, q], x[h, w, : k["it"]])
    return out.reshape(len(out), -1)


def committed(value: Ints, total: Ints, af: int, lo: int, hi: int) -> tuple[Ints, Ints]:
    """(value, what is left of the sum) after a commit."""
    steps = np.floor(total / 2.0**af + 0.5).astype(np.int64)
    return np.clip(value + steps, lo, hi), total - steps * 2**af


def test_a_batch_is_the_sum_of_rounded_steps_and_one_commit() -> None:
    compiled = batch_plan()
    kinds = {s.kind.name for s in compiled.program.segments[3] if "_upd_" in s.kind.name}
    assert kinds == {"conv2d_upd_q16", "dwconv2d_upd_q16", "linear_upd_q16", "bias_upd_s32"}
    machine, sums = Machine(compiled.plan), Sums(compiled)
    machine.observe = sums.observe
    samples = random_samples(compiled.model, 12)
    now = {t.name: values_of(compiled, t.name, machine.state) for t in compiled.program.trained}
    for batch in range(3):
        learn(machine, samples[4 * batch : 4 * batch + 4], 0.02)
        require_equal(compiled, now, sums, machine.state)
        machine.commit()
        for t in compiled.program.trained:
            bias_af = max(1, t.bf - 9)
            now[t.name]["q16"], sums.totals[t.name, "q16"] = committed(now[t.name]["q16"], sums.totals[t.name, "q16"], 5, -127, 127)
            limit = 2 ** (31 - t.bf)
            b, rest = committed(now[t.name]["s32"], sums.totals[t.name, "s32"], bias_af, -limit, limit - 1)
            now[t.name]["s32"], sums.totals[t.name, "s32"] = b, rest
        require_equal(compiled, now, sums, machine.state)
    assert 0 < sums.saturated < 200


def values_of(compiled: Compiled, layer: str, state: bytes) -> dict[str, Ints]:
    """Weights (q16) and biases (s32) of a layer."""
    t = next(t for t in compiled.program.trained if t.name == layer)
    assert t.weights is not None and t.bias is not None
    return {"q16": stored(compiled, t.weights, state) >> 8, "s32": stored(compiled, t.bias, state) >> t.bf}


def require_equal(compiled: Compiled, now: Mapping[str, Mapping[str, Ints]], sums: Sums, state: bytes) -> None:
    for t in compiled.program.trained:
        assert t.weights is not None and t.bias is not None
        for value, bits, kind in ((t.weights, 8, "q16"), (t.bias, t.bf, "s32")):
            words = stored(compiled, value, state)
            assert np.array_equal(words >> bits, now[t.name][kind]), (t.name, kind)
            assert np.array_equal((words & (1 << bits) - 1) - (1 << bits >> 1), sums.totals[t.name, kind]), (t.name, kind)


# ---- what a user sees -----------------------------------------------------------------------------------------------------


@BOTH
def test_outputs_change_with_the_commit_and_not_before(machine: type[Either]) -> None:
    compiled = batch_plan("mixed")
    m, samples = machine(compiled.plan), random_samples(compiled.model, 5)
    before, states = m.predict(samples[4]).tolist(), {m.state}
    for k in range(4):
        m.train(samples[k], k % 3, 0.2, 0.0)
        states.add(m.state)
        assert m.predict(samples[4]).tolist() == before
    assert len(states) == 5
    m.commit()
    assert m.predict(samples[4]).tolist() != before


@BOTH
def test_half_a_batch_is_saved_and_taken_up_again(machine: type[Either]) -> None:
    compiled = batch_plan()
    m, samples = machine(compiled.plan), random_samples(compiled.model, 4)
    learn(m, samples[:2], 0.1)
    half = m.state
    learn(m, samples[2:], 0.1)
    m.commit()
    other = machine(compiled.plan)
    other.state = half
    learn(other, samples[2:], 0.1)
    other.commit()
    assert other.state == m.state != half


@BOTH
def test_a_skipped_sample_adds_nothing(machine: type[Either]) -> None:
    m = machine(batch_plan().plan)
    sample = np.zeros(m.plan.header.sample_bytes, np.int8)
    m.train(sample, 1, 0.1, 0.0)
    before = m.state
    assert m.train(sample, 2, 0.1, 2.0).skipped and m.state == before


@BOTH
def test_a_commit_of_a_plan_that_updates_at_once_does_nothing(machine: type[Either]) -> None:
    m = machine(batch_plan(batch=1).plan)
    learn(m, random_samples(batch_plan(batch=1).model, 2), 0.1)
    before = m.state
    m.commit()
    assert m.state == before != m.plan.init


@pytest.mark.parametrize("name", list(GRAPHS))
def test_c_and_reference_commit_alike(name: str) -> None:
    compiled = batch_plan(name)
    a, b = Machine(compiled.plan), NativeMachine(compiled.plan)
    a.tracing = b.tracing = True
    for k, x in enumerate(random_samples(compiled.model, 6)):
        assert a.train(x, k % 3, 0.05, 0.0) == b.train(x, k % 3, 0.05, 0.0)
        assert (a.trace, a.state) == (b.trace, b.state)
        if k % 3 == 2:
            before = a.state
            a.commit()
            b.commit()
            assert (a.trace, a.state) == (b.trace, b.state) and len(a.trace) == a.plan.segments[-1] and a.state != before


def test_commits_after_every_sample_are_updates() -> None:
    """Rounded otherwise: to 1/32 of a step instead of 1/256, with what is left kept."""
    at_once, batch = batch_plan(batch=1), batch_plan()
    a, b = NativeMachine(at_once.plan), NativeMachine(batch.plan)
    for x in random_samples(at_once.model, 8) * 5:
        learn(a, [x], 0.02)
        learn(b, [x], 0.02)
        b.commit()
    for t, u in zip(at_once.program.trained, batch.program.trained, strict=True):
        assert t.weights is not None and u.weights is not None
        start = stored(at_once, t.weights, decode(at_once.plan).init) >> 8
        ours, theirs = stored(at_once, t.weights, a.state) >> 8, stored(batch, u.weights, b.state) >> 8
        moved = np.linalg.norm(ours - start)
        assert moved > 5 and np.linalg.norm(ours - theirs) < 0.3 * moved, t.name


@pytest.mark.parametrize("batch", [4, 8])
def test_a_batch_learns(batch: int) -> None:
    """Eight fixed samples, four labels."""
    compiled = batch_plan(batch=batch)
    m, samples = NativeMachine(compiled.plan), random_samples(compiled.model, 8)
    recipe = Recipe(60, 0.02 * batch, "constant", 0.0, 1, batch)
    order, commits = list(recipe.order(8)), recipe.commits(8)
    losses = []
    for k, i in enumerate(order):
        losses.append(m.train(samples[i], i % 4, recipe.learning_rate(k, len(order)), 0.0).loss)
        if k in commits:
            m.commit()
    assert np.mean(losses[-8:]) < 0.3 * np.mean(losses[:8])


# ---- the plan -------------------------------------------------------------------------------------------------------------


def test_only_a_plan_for_batches_has_commit_steps() -> None:
    at_once, batch = batch_plan("mixed", 1), batch_plan("mixed")
    assert decode(at_once.plan).segments[4] == 0 and {s.scalars.get("af", 0) for s in at_once.program.steps} == {0}
    assert decode(at_once.plan).header.plan_crc != decode(batch.plan).header.plan_crc
    updated = [s.refs["wt" if "wt" in s.refs else "b"] for s in batch.program.segments[3] if "_upd_" in s.kind.name]
    moved = [s.refs["wt" if "wt" in s.refs else "b"] for s in batch.program.segments[4]]
    assert len(moved) == len(set(moved)) and set(moved) == set(updated)
    af = {r: s.scalars["af"] for s in batch.program.segments[3] for r in s.refs.values() if r in moved and "af" in s.scalars}
    assert all(af[next(iter(s.refs.values()))] == s.scalars["af"] for s in batch.program.segments[4])


@pytest.mark.parametrize(
    ("largest", "bits"),
    [
        (0, (13, 4)),
        (65_535, (13, 4)),
        (65_536, (12, 3)),
        (10**6, (9, 1)),
        (2**23, (6, 1)),
        (2**25, (4, 1)),
        (2**26, (4, 0)),
        (2**27, (3, 0)),
        (2**31 - 1, (0, 0)),
    ],
)
def test_bits_of_a_bias(largest: int, bits: tuple[int, int]) -> None:
    """The more a value takes, the fewer are left below it; it may always double. Below 4 bits there is no sum."""
    bf, af = bias_sum_bits(np.array([-largest, 3]))
    assert (bf, af) == bits
    assert largest * 2**bf < 2**31
    if af:
        assert 2 * largest + 2**17 <= 2 ** (31 - bf) and (bf < 10 or bf - 1 - af == 8)


def test_a_bias_without_room_for_a_sum_is_updated_with_every_sample() -> None:
    graph = chain(3)
    index = graph.layers[-1].inputs[2]
    bias = graph.tensors[index].data
    assert bias is not None
    changed = np.array(bias)
    changed[0] = -(2**28)
    compiled = compile_graph(with_data(graph, {index: changed}), "all", Options(batch=4))
    name = graph.layers[-1].name
    assert any(name in note and "268435456" in note and "every sample" in note for note in compiled.program.notes)
    steps = [s for s in compiled.program.segments[4] if s.label == name]
    assert [s.kind.name for s in steps] == ["commit_s16"]
    machine = Machine(compiled.plan)
    value = compiled.program.trained[-1].bias
    assert value is not None
    before = stored(compiled, value, machine.state)
    learn(machine, random_samples(compiled.model, 2), 0.1)
    assert (stored(compiled, value, machine.state) != before).any()


def test_the_plan_is_the_same_for_every_batch_length() -> None:
    assert batch_plan(batch=2).plan == batch_plan(batch=64).plan


def test_int8_weights_have_no_sum() -> None:
    with pytest.raises(UsageError, match=r"--batch 8 --rounding stochastic: .*use --rounding residual, or --batch 1"):
        Options(ws=1, batch=8)
    with pytest.raises(UsageError, match="--batch 0: at least 1"):
        Options(batch=0)


# ---- the recipe -----------------------------------------------------------------------------------------------------------


def test_a_batch_ends_after_n_samples_and_with_the_epoch() -> None:
    assert sorted(Recipe(2, 0.1, "constant", 0.0, 1, 4).commits(10)) == [3, 7, 9, 13, 17, 19]
    assert sorted(Recipe(2, 0.1, "constant", 0.0, 1, 5).commits(10)) == [4, 9, 14, 19]
    assert sorted(Recipe(2, 0.1, "constant", 0.0, 1, 100).commits(3)) == [2, 5]
    assert Recipe(2, 0.1, "constant", 0.0, 1).commits(10) == frozenset()


def test_the_rate_goes_with_the_mean() -> None:
    one, eight = Recipe(1, 0.4, "cosine", 0.0, 1), Recipe(1, 0.4, "cosine", 0.0, 1, 8)
    assert eight.sample_lr == 0.05
    assert all(8 * eight.learning_rate(k, 100) == pytest.approx(one.learning_rate(k, 100)) for k in range(100))


def test_mixed_has_a_layer_of_every_kind() -> None:
    """What the tests above rely on."""
    assert {s.kind.name for s in compile_graph(mixed(3), "all", Options(batch=4)).program.segments[4]} == {"commit_s16", "commit_s32"}
