"""Graph to plan: the plan computes what the graph means, from whatever slices its weights are put together, and hands them back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.graphs import GRAPHS, GraphBuilder, Ints, chain, mixed, output_int8, random_samples, residual, run_int8, views, with_data
from helpers.tiny_graphs import oracle
from mcugrad.autodiff import parse_scheme
from mcugrad.autodiff.scheme import trained_channels
from mcugrad.errors import PlanError
from mcugrad.exporter import write_tflite
from mcugrad.graph import Activation, Graph, Quant
from mcugrad.graph.normalize import normalize
from mcugrad.lower import Options, quant
from mcugrad.lower.backward import clamp_bounds
from mcugrad.lower.read_back import apply_state
from mcugrad.lower.weights import (
    ACC_LIMIT,
    FROZEN_SCALE,
    Layer,
    bias_bits,
    bias_bytes,
    bias_values,
    fold,
    fold_constant_channels,
    read_layer,
)
from mcugrad.pipeline import Compiled, compile_graph
from mcugrad.plan import Region, decode, offset_of, region_of
from mcugrad.plan.opsdef import TYPES
from mcugrad.ref import Machine
from mcugrad.ref.fixed import requant, wrap32


def sliced(graph: Graph, ratio: str) -> str:
    return ",".join(f"weights:{op.name}:{ratio}" for op in graph.layers)


SCHEMES = ["all", "head", "bias:2", "1/8", "1/4", "1/2"]


def plans(graph: Graph, ws: int) -> list[Compiled]:
    schemes = [sliced(graph, s) if "/" in s else s for s in SCHEMES]
    return [compile_graph(graph, s, Options(ws=ws)) for s in schemes] + [compile_graph(graph, None)]


@pytest.mark.parametrize("ws", [1, 2])
@pytest.mark.parametrize("name", list(GRAPHS))
def test_predict_is_what_the_graph_means(name: str, ws: int) -> None:
    graph = GRAPHS[name](6)
    samples = random_samples(graph, 4, 1)
    expected = [run_int8(graph, s)[graph.output].ravel() for s in samples]
    assert len({e.tobytes() for e in expected}) > 1
    for compiled in plans(graph, ws):
        machine = Machine(compiled.plan)
        for sample, want in zip(samples, expected, strict=True):
            assert (machine.predict(sample) == want).all(), compiled.train.scheme.describe(graph)


@pytest.mark.parametrize("name", list(GRAPHS))
def test_predict_is_what_tensorflow_computes(name: str) -> None:
    graph = GRAPHS[name](6)
    samples = random_samples(graph, 6, 1)
    machine = Machine(compile_graph(graph, "all").plan)
    for sample, want in zip(samples, oracle(write_tflite(graph), list(samples)), strict=True):
        assert (machine.predict(sample) == want.ravel()).all()


def test_a_trained_graph_is_what_tensorflow_computes() -> None:
    """After training, the graph read back from STATE and written as a file gives the machine's outputs."""
    for ws, build in ((1, residual), (2, views)):
        graph = build(3)
        compiled = compile_graph(graph, "all", Options(ws=ws))
        machine = Machine(compiled.plan)
        samples = random_samples(graph, 12, 2)
        for k, sample in enumerate(samples):
            machine.train(sample, k % 3, 0.02, 0.0)
        trained = apply_state(graph, compiled.program, compiled.layout, machine.state)
        assert write_tflite(trained) != write_tflite(graph)
        for sample, want in zip(samples, oracle(write_tflite(trained), list(samples)), strict=True):
            assert (machine.predict(sample) == want.ravel()).all()


@pytest.mark.parametrize("ws", [1, 2])
@pytest.mark.parametrize("name", list(GRAPHS))
def test_the_initial_state_gives_the_weights_back(name: str, ws: int) -> None:
    graph = GRAPHS[name](6)
    for compiled in plans(graph, ws):
        for model in (graph, compiled.train.graph):
            back = apply_state(model, compiled.program, compiled.layout, decode(compiled.plan).init)
            for a, b in zip(back.tensors, model.tensors, strict=True):
                assert (a.data is None) == (b.data is None)
                assert a.data is None or b.data is None or (a.data == b.data).all(), a.name


def test_a_state_of_another_plan_is_refused() -> None:
    graph = chain(1)
    compiled = compile_graph(graph, "all")
    with pytest.raises(PlanError, match=r"STATE has 7 bytes, the plan's has \d+"):
        apply_state(graph, compiled.program, compiled.layout, b"1234567")


@pytest.mark.parametrize("name", list(GRAPHS))
def test_references_stay_in_their_regions_and_on_their_alignment(name: str) -> None:
    for compiled in plans(GRAPHS[name](6), 2):
        plan = decode(compiled.plan)
        head = plan.header
        limit = {Region.ARENA: head.arena_bytes, Region.CONST: head.const_bytes, Region.STATE: head.state_bytes, Region.IO: head.io_bytes}
        for step in plan.steps:
            nbytes = step.kind.nbytes(step.values)
            for ref in step.kind.refs:
                reference = int(step.values[ref.name])
                if nbytes[ref.name] == 0:
                    assert reference == 0
                    continue
                region, offset = region_of(reference), offset_of(reference)
                assert offset + nbytes[ref.name] <= limit[region] and offset % TYPES[ref.type][1] == 0
                assert region is Region.CONST if ref.access == "CONST" else not (ref.writes and region is Region.CONST)


def test_a_plan_that_only_predicts_has_no_loss() -> None:
    compiled = compile_graph(chain(1), None)
    head = decode(compiled.plan).header
    assert (head.classes, head.eval_steps, head.loss_steps, head.backward_steps) == (0, 0, 0, 0)
    assert compiled.program.trained == () and compiled.program.logits is None


# ---- heads --------------------------------------------------------------------------------------------------------------


def heads() -> dict[str, Graph]:
    found: dict[str, Graph] = {}
    for name in ("mean", "mean_keep", "pool", "reshape", "conv_pixel", "conv_pixel_reshape", "vector"):
        b = GraphBuilder((1, 20) if name == "vector" else (1, 4, 4, 3), 2)
        x = b.input if name == "vector" else b.conv(b.input, 5, activation=Activation.RELU)
        if name == "mean":
            x = b.mean(x)
        elif name in ("mean_keep", "conv_pixel", "conv_pixel_reshape"):
            x = b.mean(x, keep_dims=True)
        elif name == "pool":
            x = b.pool(x, (4, 4), (4, 4))
        elif name == "reshape":
            x = b.reshape(x, (1, 80))
        pixel = name.startswith("conv_pixel")
        y = b.conv(x, 4, (1, 1), pad=(0, 0, 0, 0)) if pixel else b.linear(x, 4)
        y = b.reshape(y, (1, 4)) if name == "conv_pixel_reshape" else y
        found[name] = b.finish(y if name == "mean" else b.softmax(y))
    return found


@pytest.mark.parametrize("name", list(heads()))
def test_every_form_of_head(name: str) -> None:
    graph = heads()[name]
    compiled = compile_graph(graph, "head,bias:1")
    kinds = [s.kind.name for s in compiled.program.steps]
    assert "linear_fwd_s32" in kinds and "linear_upd_q16" in kinds and "requant_fwd_s8" in kinds
    machine = Machine(compiled.plan)
    for k, sample in enumerate(random_samples(graph, 3)):
        assert (Machine(compiled.plan).predict(sample) == run_int8(graph, sample)[graph.output].ravel()).all()
        assert not machine.train(sample, k, 0.1, 0.0).skipped
    assert machine.state != decode(compiled.plan).init
    learnt = apply_state(graph, compiled.program, compiled.layout, machine.state)
    assert (machine.predict(sample) == run_int8(learnt, sample)[graph.output].ravel()).all()


# ---- dead channels ------------------------------------------------------------------------------------------------------


def with_dead_channels(graph: Graph, layer: str, channels: list[int]) -> Graph:
    """Scale 4e-9 and a bias at the end of int32, as pruned models have them."""
    op = next(op for op in graph.layers if op.name == layer)
    w, b = graph.tensors[op.inputs[1]], graph.tensors[op.inputs[2]]
    assert w.quant is not None and b.data is not None
    scale = [4e-9 if k in channels else s for k, s in enumerate(w.quant.scale)]
    bias = b.data.copy()
    bias[channels] = [(-(2**31), 2**31 - 1)[k % 2] for k in range(len(channels))]
    quant = Quant(tuple(float(np.float32(s)) for s in scale), 0, w.quant.axis)
    tensors = list(with_data(graph, {op.inputs[2]: bias}).tensors)
    tensors[op.inputs[1]] = replace(w, quant=quant)
    return replace(graph, tensors=tuple(tensors))


@pytest.mark.parametrize("ws", [1, 2])
@pytest.mark.parametrize("layer", ["conv_0", "dwconv_0", "conv_1", "linear_0"])
def test_dead_channels_are_frozen_with_a_note(layer: str, ws: int) -> None:
    graph = with_dead_channels(chain(4), layer, [0, 2])
    compiled = compile_graph(graph, "all", Options(ws=ws))
    notes = [n for n in compiled.program.notes if n.startswith(layer)]
    assert len(notes) == 1 and "2 of" in notes[0] and "1e-5" in notes[0]
    machine = Machine(compiled.plan)
    samples = random_samples(graph, 10, 3)
    for sample in samples[:2]:
        assert (machine.predict(sample) == run_int8(graph, sample)[graph.output].ravel()).all()
    for k, sample in enumerate(samples):
        assert np.isfinite(machine.train(sample, k % 3, 0.05, 0.0).loss)
    trained = apply_state(graph, compiled.program, compiled.layout, machine.state)
    op, new = next((a, b) for a, b in zip(graph.layers, trained.layers, strict=True) if a.name == layer)
    old_layer, new_layer = read_layer(graph, op), read_layer(trained, new)
    assert (old_layer.w[[0, 2]] == new_layer.w[[0, 2]]).all()
    assert (old_layer.b[[0, 2]] == new_layer.b[[0, 2]]).all()
    assert (old_layer.w != new_layer.w).any()
    alive = np.setdiff1d(np.arange(len(old_layer.b)), [0, 2])
    assert (old_layer.b[alive] != new_layer.b[alive]).any()


def without_folding(monkeypatch: pytest.MonkeyPatch) -> None:
    def unfolded(layer: Layer, requants: quant.Requants, *_: object) -> tuple[Layer, quant.Requants]:
        return layer, requants

    monkeypatch.setattr("mcugrad.lower.layers.fold_constant_channels", unfolded)


@pytest.mark.parametrize("layer", ["conv_0", "dwconv_0", "conv_1", "conv_2"])
def test_folding_changes_no_output_and_gives_the_other_biases_their_fraction_bits(layer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """conv_2 is grouped. Unfolded, one bias at the end of int32 takes the fraction bits of all others of its layer.

    Two of the three channels have no weights, as a convolution's dead ones; the third has, and a bias that leaves them room.
    """
    graph = with_dead_channels(mixed(4), layer, [0, 2, 5])
    op = next(op for op in graph.layers if op.name == layer)
    w, b = (np.array(graph.tensors[i].data) for i in op.inputs[1:])
    np.moveaxis(w, 3 if layer.startswith("dw") else 0, 0)[[0, 2]] = 0
    b[5] = 2**30
    graph = with_data(graph, {op.inputs[1]: w, op.inputs[2]: b})
    folded = compile_graph(graph, "all")
    without_folding(monkeypatch)
    plain = compile_graph(graph, "all")
    bits = [next(t.bf for t in c.program.trained if t.name == layer) for c in (folded, plain)]
    assert bits[0] == 8 and bits[1] == 0
    machines = [Machine(c.plan) for c in (folded, plain)]
    shape = graph.tensors[graph.input].shape
    for sample in [*random_samples(graph, 6, 3), *(np.full(shape, v, np.int8) for v in (-128, 0, 127))]:
        want = output_int8(graph, sample)
        assert all((machine.predict(sample) == want).all() for machine in machines)


@st.composite
def dead_layers(draw: st.DrawFn) -> tuple[Layer, quant.Requants, int, tuple[int, int], tuple[int, int]]:
    """A layer of four outputs, of which some are dead: with biases small, at the end of int32, and where the sum wraps."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    w = rng.integers(-127, 128, (4, 2, 1, 3)) * rng.integers(0, 2, (4, 1, 1, 1))
    ends = st.sampled_from([0, 1, -1, 2**31 - 1, -(2**31), 2**31 - 1 - 50_000, -(2**31) + 50_000, 2**31 - 10, 10**6, -(10**9)])
    b = np.array([draw(ends | st.integers(-(2**31), 2**31 - 1)) for _ in range(4)])
    scale = np.array([draw(st.sampled_from([4e-9, 9e-6, 0.01])) for _ in range(4)], np.float32).astype(np.float64)
    layer = Layer(w.astype(np.int8), b, scale, draw(st.sampled_from([0.02, 0.5])), False)
    requants = quant.conv_requant(layer.x_scale, tuple(scale), draw(st.sampled_from([0.02, 1e-3])))
    zeros = draw(st.integers(-128, 127)), draw(st.integers(-128, 127))
    clamp = draw(st.sampled_from([(-128, 127), (zeros[1], 127), (-100, 100)]))
    return layer, requants, draw(st.integers(0, 1)), zeros, clamp


def layer_outputs(layer: Layer, requants: quant.Requants, rounding: int, zeros: tuple[int, int], clamp: tuple[int, int], x: Ints) -> Ints:
    """x (N, taps) -> y (N, O), as conv2d_fwd_s8 computes it."""
    acc = wrap32(wrap32((x - zeros[0]) @ layer.w.astype(np.int64).reshape(len(layer.b), -1).T) + layer.b)
    return np.clip(zeros[1] + requant(acc, requants["mult"], requants["shift"], rounding), *clamp)


@given(dead_layers())
@settings(max_examples=300, deadline=None)
def test_a_folded_channel_is_constant_and_the_same(case: tuple[Layer, quant.Requants, int, tuple[int, int], tuple[int, int]]) -> None:
    layer, requants, rounding, zeros, clamp = case
    folded, records = fold_constant_channels(layer, requants, rounding, zeros, clamp)
    rng = np.random.default_rng(0)
    up = layer.w.reshape(4, 6) > 0
    x = np.concatenate([rng.integers(-128, 128, (40, 6)), np.where(up, 127, -128), np.where(up, -128, 127)])
    before, after = layer_outputs(layer, requants, rounding, zeros, clamp, x), layer_outputs(folded, records, rounding, zeros, clamp, x)
    assert (before == after).all()
    reach = np.abs(layer.w.astype(np.int64)).sum(axis=(1, 2, 3)) * 255
    for o in range(4):
        changed = folded.b[o] != layer.b[o] or (folded.w[o] != layer.w[o]).any() or records[o] != requants[o]
        if changed:
            assert layer.w_scale[o] < FROZEN_SCALE and not folded.w[o].any() and abs(folded.b[o]) <= 255
        elif layer.w_scale[o] < FROZEN_SCALE and abs(layer.b[o]) + reach[o] < 2**31:
            assert len(set(before[:, o].tolist())) > 1 or layer.w[o].any() or abs(layer.b[o]) <= 255, "a constant channel was left"


def test_a_dead_channel_whose_sum_may_wrap_or_whose_output_moves_is_left_alone() -> None:
    w = np.full((3, 1, 1, 2), 100, np.int8)
    layer = Layer(w, np.array([2**31 - 1, 2**31 - 60_000, 0]), np.array([4e-9, 4e-9, 9e-6]), 1.0, False)
    requants = quant.conv_requant(1.0, (4e-9, 4e-9, 9e-6), 1e-3)
    folded, records = fold_constant_channels(layer, requants, 0, (0, 0), (-128, 127))
    assert (folded.w[:, 0, 0, 0] == [100, 0, 100]).all()
    assert folded.b[0] == 2**31 - 1 and folded.b[1] == 127 and folded.b[2] == 0
    assert records[0] == requants[0] and records[1] != requants[1] and records[2] == requants[2]


# ---- constants per channel ----------------------------------------------------------------------------------------------


@st.composite
def layers(draw: st.DrawFn) -> tuple[Layer, int]:
    depthwise, multiplier = draw(st.booleans()), draw(st.sampled_from([1, 2, 16]))
    o, r, s = draw(st.sampled_from([16, 64, 512])), draw(st.integers(1, 7)), draw(st.integers(1, 7))
    i = 1 if depthwise else draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    w = rng.integers(-127, 128, (o, r, s, i)) if draw(st.booleans()) else np.full((o, r, s, i), 127)
    scale = np.exp(rng.normal(-4, draw(st.sampled_from([0.1, 1.0, 4.0])), o))
    layer = Layer(w.astype(np.int8), np.zeros(o, np.int64), scale, 0.1, depthwise, multiplier if depthwise else 1)
    return layer, draw(st.sampled_from([0, 1, o if depthwise else i]))


@given(layers())
@settings(max_examples=60, deadline=None)
def test_folded_errors_fit_the_accumulator(case: tuple[Layer, int]) -> None:
    """The worst error for the worst weights stays below 2^30; and m · unit is each channel's scale, to half a unit."""
    layer, channels = case
    m, unit = fold(layer, channels)
    w = np.abs(layer.w.astype(np.int64))
    w[:channels] = 127 if layer.depthwise else w[:channels]
    w[..., :channels] = w[..., :channels] if layer.depthwise else 127
    worst = (w * 127 * m.astype(np.int64)[:, None, None, None]).sum(axis=(1, 2))
    per_input = worst.reshape(-1, layer.multiplier).sum(axis=1) if layer.depthwise else worst.sum(axis=0)
    assert per_input.max() < ACC_LIMIT
    assert np.abs(m * unit - layer.w_scale).max() <= unit / 2 * (1 + 1e-9)
    assert m.max() in (1, 2, 4, 8, 16, 32, 64, 128)
    finer = per_input.max() * 2
    assert m.max() == 128 or finer + 127 * 127 * w.shape[0] * w.shape[1] * w.shape[2] >= ACC_LIMIT, "bits are given away"


def test_fold_has_seven_bits_in_an_ordinary_layer_and_fewer_in_a_wide_one() -> None:
    def layer(o: int, taps: int) -> Layer:
        return Layer(np.full((o, taps, taps, 1), 127, np.int8), np.zeros(o, np.int64), np.full(o, 0.01), 0.1, False)

    assert fold(layer(64, 1), 1)[0].max() == 128
    assert fold(layer(512, 1), 1)[0].max() == 128
    assert fold(layer(512, 3), 1)[0].max() == 8


def test_fold_counts_all_channels_of_a_multiplier() -> None:
    """16 outputs of a 7x7 depthwise layer add up in one input: 128 · 127 · 127 · 49 · 16 is above 2^30."""
    w = np.full((32, 7, 7, 1), 127, np.int8)
    layer = Layer(w, np.zeros(32, np.int64), np.full(32, 0.01), 0.1, True, 16)
    assert fold(layer, 0)[0].max() == 64
    assert fold(replace(layer, multiplier=1), 0)[0].max() == 128


@pytest.mark.parametrize(
    "largest, bits",
    [(0, 8), (1000, 8), (2**23 - 2, 8), (2**23 - 1, 7), (2**23, 7), (2**30 - 2, 1), (2**30 - 1, 0), (2**31 - 1, 0), (2**31, 0)],
)
def test_bias_bits(largest: int, bits: int) -> None:
    for b in (np.array([0, -largest]), np.array([min(largest, 2**31 - 1), 0])):
        f = bias_bits(b)
        assert f == bits or (b.max() == 2**31 - 1 and f == 0)
        assert (bias_values(bias_bytes(b, f), f) == b).all()


@given(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=5))
def test_a_bias_comes_back_from_its_fixed_point_form(values: list[int]) -> None:
    b = np.array(values, np.int64)
    bf = bias_bits(b)
    assert 0 <= bf <= 8
    assert (bias_values(bias_bytes(b, bf), bf) == b).all()


@pytest.mark.parametrize("share, channels", [(1 / 8, 1), (1 / 4, 2), (1 / 2, 4), (1.0, 8), (0.001, 1)])
def test_a_share_of_the_channels(share: float, channels: int) -> None:
    graph = chain(1)
    assert trained_channels(graph, graph.layers[1], share) == channels
    assert trained_channels(graph, graph.layers[2], share) == channels


@pytest.mark.parametrize("ws", [1, 2])
@pytest.mark.parametrize("ratio, part", [("1/8", 1 / 8), ("1/4", 1 / 4), ("1/2", 1 / 2), ("1", 1.0)])
def test_state_holds_only_the_trained_slice(ratio: str, part: float, ws: int) -> None:
    graph = residual(1)
    compiled = compile_graph(graph, f"weights:conv_1:{ratio}", Options(ws=ws))
    op = graph.layers[1]
    assert [t.name for t in compiled.program.trained] == ["conv_1"]
    value = compiled.program.trained[0].weights
    assert value is not None and value.region is Region.STATE
    assert value.nbytes == ws * part * graph.tensors[op.inputs[1]].size
    frozen = [step.refs["wf"] for step in compiled.lowered.steps if step.kind.name == "conv2d_fwd_s8" and step.label == "conv_1"]
    rest = frozen[0].nbytes if frozen[0] is not None else 0
    assert rest == (1 - part) * graph.tensors[op.inputs[1]].size


def test_each_trained_layer_draws_from_its_own_stream() -> None:
    compiled = compile_graph(chain(1), "all", Options(ws=1, seed=77))
    streams = [step.scalars["stream"] for step in compiled.program.steps if "stream" in step.scalars]
    assert len(streams) == 5 and len(set(streams)) == 5
    assert decode(compiled.plan).init[offset_of(decode(compiled.plan).header.rng) :][:8] == bytes([77, 0, 0, 0, 0, 0, 0, 0])


def test_each_error_tensor_has_its_own_exponent() -> None:
    for build in GRAPHS.values():
        backward = compile_graph(build(1), "all").program.segments[3]
        exponents = [step.refs["rx"] for step in backward if "rx" in step.refs]
        assert len(exponents) == len(set(exponents)) > 0


# ---- masks --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "activation, scale, zero_point, bounds",
    [
        (Activation.NONE, 0.05, -128, (-128, 128)),
        (Activation.RELU, 0.05, -128, (-128, 128)),
        (Activation.RELU, 0.05, -20, (-20, 128)),
        (Activation.RELU6, 6 / 255, -128, (-128, 127)),
        (Activation.RELU6, 0.05, -128, (-128, -8)),
        (Activation.RELU6, 0.02, -128, (-128, 128)),  # int8 ends below 6: the top is saturation, not the clamp
        (Activation.RELU_N1_1, 0.01, 0, (-100, 100)),
    ],
)
def test_the_mask_is_open_between_the_clamps(activation: Activation, scale: float, zero_point: int, bounds: tuple[int, int]) -> None:
    b = GraphBuilder((1, 4, 4, 2), 1)
    y = b.conv(b.input, 3, activation=activation if activation is not Activation.NONE else Activation.RELU)
    graph = b.finish(b.linear(b.mean(y), 2))
    op = graph.ops[0]
    tensors = list(graph.tensors)
    tensors[y] = replace(tensors[y], quant=Quant((float(np.float32(scale)),), zero_point))
    ops = (replace(op, kind=replace(op.kind, activation=activation)), *graph.ops[1:])  # type: ignore[call-arg]
    graph = replace(graph, tensors=tuple(tensors), ops=ops)
    assert clamp_bounds(normalize(graph), y) == bounds
    steps = compile_graph(graph, "all").lowered.steps
    kept = next(s for s in steps if s.kind.name == "mask_s8")
    used = next(s for s in steps if s.kind.name == "avgpool_bwd_x_s8")
    assert (kept.scalars["lo"], kept.scalars["hi"], used.scalars["has_mask"], used.scalars["has_bits"]) == (*bounds, 0, 1)
    assert kept.refs["bits"] is used.refs["bits"] is not None


def test_nothing_is_masked_where_nothing_is_clamped() -> None:
    b = GraphBuilder((1, 4, 4, 2), 1)
    graph = b.finish(b.linear(b.mean(b.conv(b.input, 3)), 2))
    for step in compile_graph(graph, "all").program.segments[3]:
        assert step.scalars.get("has_mask", 0) == 0


def test_the_same_graph_gives_the_same_plan() -> None:
    graph = residual(1)
    assert compile_graph(graph, "all").plan == compile_graph(residual(1), "all").plan
    names = {s.name: s for s in compile_graph(graph, "all").program.steps}
    assert len(names) == len(compile_graph(graph, "all").program.steps), "every step has a name of its own"


def test_scheme_of_a_graph_and_of_its_normalized_form_agree() -> None:
    graph = views(1)
    assert parse_scheme("head,bias:3", graph) == parse_scheme("head,bias:3", normalize(graph))


def observed_logits(machine: Machine, sample: npt.NDArray[np.int8]) -> npt.NDArray[np.int64]:
    seen: list[npt.NDArray[np.int64]] = []

    def observe(index: int, kind: str, arrays: object) -> None:
        if kind == "linear_fwd_s32":
            assert isinstance(arrays, dict)
            seen.append(arrays["y"].astype(np.int64))

    machine.observe = observe
    machine.predict(sample)
    return seen[0]


def test_the_loss_reads_real_logits() -> None:
    """xent's scales turn the head's accumulators into the real logits: input scale times weight scale, per channel or for all."""
    for build in (chain, GRAPHS["rows"]):
        graph = build(2)
        compiled = compile_graph(graph, "head")
        machine, sample = Machine(compiled.plan), random_samples(graph, 1, 4)[0]
        op = compiled.train.graph.layers[-1]
        layer = read_layer(compiled.train.graph, op)
        x = run_int8(graph, sample)[graph.ops[-1].inputs[0]].astype(np.float64).ravel() - graph.tensors[op.inputs[0]].quant.zero_point  # type: ignore[union-attr]
        logits = layer.w_scale * (layer.w[:, 0, 0, :] @ (x * layer.x_scale)) + layer.b * layer.w_scale * layer.x_scale
        np.testing.assert_allclose(observed_logits(machine, sample) * layer.x_scale * layer.w_scale, logits, rtol=1e-9)
        machine.observe = None
        top = logits.max()
        want = np.log(np.exp(logits - top).sum()) + top - logits[1]
        assert machine.train(sample, 1, 0.0, 0.0).loss == pytest.approx(want, rel=1e-5)
