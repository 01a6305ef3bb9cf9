"""The pruned backward pass: whatever is left out, what is trained gets the gradient of full training, bit for bit."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from helpers.apart import apart
from helpers.graphs import GRAPHS, GraphBuilder, chain, double_residual, random_samples, residual, rows, run_int8
from helpers.kinds import BODIES, with_op
from mcugrad.autodiff import Loss, TrainGraph, differentiate
from mcugrad.autodiff.differentiate import MakeError, UpdateBias, UpdateWeights, needs_mask, only_predict
from mcugrad.autodiff.scheme import Scheme, parse_scheme
from mcugrad.errors import ModelError, UsageError
from mcugrad.graph import Activation, Conv2D, Function, Graph
from mcugrad.graph.normalize import normalize
from mcugrad.pipeline import Compiled, compile_graph
from mcugrad.proof.tape import float_gradients, softmax_error
from mcugrad.ref import Machine

Step = dict[tuple[str, str], bytes]
LABEL = 2


def train_graph(graph: Graph, scheme: Scheme) -> TrainGraph:
    return differentiate(normalize(graph), scheme)


def words(graph: Graph, weights: tuple[bool, ...], biases: tuple[bool, ...]) -> str:
    names = [op.name for op in graph.layers]
    found = [f"weights:{n}" for n, on in zip(names, weights, strict=True) if on]
    return ",".join(found + [f"bias:{n}" for n, on in zip(names, biases, strict=True) if on])


def first_step(compiled: Compiled) -> Step:
    """(layer, "dW" or "db") -> integer gradient of the first step, and (layer, "w" or "b") -> the bytes of STATE behind it."""
    machine = Machine(compiled.plan)
    found: Step = {}

    def observe(index: int, kind: str, arrays: Mapping[str, npt.NDArray[np.generic]]) -> None:
        if "grad" in arrays:
            what = "b" if kind == "bias_upd_s32" else "w"
            layer = compiled.program.steps[index].label
            found[layer, f"d{what}"] = arrays["grad"].tobytes()
            found[layer, what] = arrays["b" if what == "b" else "wt"].tobytes()

    machine.observe = observe
    assert not machine.train(random_samples(compiled.model, 1, 7)[0], LABEL, 0.05, 0.0).skipped
    return found


@functools.cache
def full_step(name: str) -> tuple[Graph, Step]:
    graph = GRAPHS[name](11)
    step = first_step(compile_graph(graph, "all"))
    assert len(step) == 4 * len(graph.layers)
    return graph, step


@pytest.mark.parametrize("which", ["weights", "biases", "both"])
@pytest.mark.parametrize("name", ["chain", "mixed"])
def test_every_mask_of_a_chain_trains_as_full_training(name: str, which: str) -> None:
    """Also where the chain has a max pool, tables, products and a concat in it: mixed."""
    graph, full = full_step(name)
    nothing = (False,) * 5
    for mask in itertools.product((False, True), repeat=5):
        if any(mask):
            scheme = words(graph, mask if which != "biases" else nothing, mask if which != "weights" else nothing)
            got = first_step(compile_graph(graph, scheme))
            assert len(got) == 2 * sum(mask) * (2 if which == "both" else 1)
            for key, value in got.items():
                assert value == full[key], f"{scheme}: {key}"


@pytest.mark.parametrize("name", ["chain", "mixed"])
def test_bias_only_is_the_bias_part_of_full_training(name: str) -> None:
    graph, full = full_step(name)
    got = first_step(compile_graph(graph, f"bias:{len(graph.layers)}"))
    assert got == {key: value for key, value in full.items() if key[1] in ("b", "db")} and len(got) == 10


@pytest.mark.parametrize("name", ["residual", "double_residual", "views", "gate", "shuffle"])
def test_pruned_branches_train_as_full_training(name: str) -> None:
    """Float gradients of every mask: a branch without trained layers must not take its share of the sum away.

    In integers the errors of a pruned graph may be rounded at other places, so that here the rules in real numbers are compared.
    """
    graph = GRAPHS[name](11)
    values = run_int8(graph, random_samples(graph, 1, 7)[0])
    head = softmax_error(np.linspace(-1, 1, graph.tensors[graph.layers[-1].outputs[0]].size), LABEL)
    count = len(graph.layers)
    everything = frozenset(range(count))
    full = float_gradients(train_graph(graph, Scheme(dict.fromkeys(everything, 1.0), everything)), values, head)
    for mask in itertools.product((False, True), repeat=count):
        on = frozenset(k for k in range(count) if mask[k])
        if not on:
            continue
        weights, biases = dict.fromkeys(on, 1.0), frozenset(k for k in on if k % 2)
        got = float_gradients(train_graph(graph, Scheme(weights, biases)), values, head)
        assert len(got) == len(weights) + len(biases)
        for key, value in got.items():
            np.testing.assert_allclose(value, full[key], rtol=1e-12, atol=1e-15, err_msg=f"{mask} {key}")


def test_a_slice_trains_as_the_whole_layer() -> None:
    """The leading channels of a slice move exactly as in full training."""
    graph, full = full_step("mixed")
    for op in graph.layers:
        for ratio, share in (("1/8", 8), ("1/4", 4), ("1/2", 2)):
            compiled = compile_graph(graph, f"weights:{op.name}:{ratio}")
            got = np.frombuffer(first_step(compiled)[op.name, "dw"], "<i4")
            w = graph.tensors[op.inputs[1]].shape
            channels = max(1, round(w[-1] / share))
            whole = np.frombuffer(full[op.name, "dw"], "<i4")
            kept = whole.reshape(w[-1], -1)[:channels] if op.name.startswith("dw") else whole.reshape(-1, w[-1])[:, :channels]
            assert (got == kept.ravel()).all(), (op.name, ratio)


def test_errors_stop_at_the_deepest_trained_layer() -> None:
    graph = chain(1)
    order = [op.name for op in graph.ops]
    for k, op in enumerate(graph.layers):
        for scheme in (Scheme({k: 1.0}, frozenset()), Scheme({}, frozenset({k}))):
            train = train_graph(graph, scheme)
            passed = [step.op.name for step in train.backward if isinstance(step, MakeError) and step.op is not None]
            assert passed == order[order.index(op.name) + 1 :][::-1]
            assert len(train.backward) == len(passed) + 1
            kinds = [s.kind.name for s in compile_graph(graph, scheme.describe(graph)).program.segments[3]]
            assert sum("bwd_x" in kind for kind in kinds) == len(passed)


def test_a_frozen_side_branch_gets_no_error() -> None:
    """residual: only the layers of the block's inner path are trained, so nothing is computed for the stem."""
    graph = residual(1)
    train = train_graph(graph, parse_scheme("weights:conv_2", graph))
    assert [step.op.name if isinstance(step, MakeError) and step.op else "" for step in train.backward] == [
        "linear_0",
        "conv_3",
        "avgpool_0",
        "",
    ]
    assert all(isinstance(step, UpdateWeights) or step.skip is None for step in train.backward if not isinstance(step, UpdateBias))


def test_bias_only_keeps_no_activations() -> None:
    """A bias needs errors alone: without masks nothing of the forward pass lives on, with masks only what is masked."""
    b = GraphBuilder((1, 6, 6, 3), 1)
    y = b.conv(b.conv(b.input, 8), 8)
    graph = b.finish(b.linear(b.mean(y), 3))
    compiled = compile_graph(graph, "bias:3")
    before_backward = sum(len(s) for s in compiled.program.segments[:3])
    for tensor, value in compiled.program.tensors.items():
        for piece in compiled.layout.live.pieces.get(value.root, ()):
            assert piece.last < before_backward, graph.tensors[tensor].name


def test_every_clamped_tensor_is_masked_once_and_after_its_last_share() -> None:
    """A mask before the sum is complete would let the later shares through; none at all would train dead neurons."""
    for graph in map(normalize, [*(build(1) for build in GRAPHS.values()), *(with_op(body) for body in BODIES)]):
        train = differentiate(graph, parse_scheme("all", graph))
        producer = {op.outputs[0]: op for op in graph.ops}
        reads = reads_before_the_loss(train)
        made: dict[int, list[MakeError]] = {}
        for step in train.backward:
            if isinstance(step, MakeError):
                made.setdefault(step.tensor, []).append(step)
        for tensor, steps in made.items():
            name = graph.tensors[tensor].name
            masks = [step.masked for step in steps]
            assert masks == [False] * (len(masks) - 1) + [needs_mask(graph, producer.get(tensor))], name
            shares: dict[int, int] = {}
            for step in steps:
                own = 1 if step.op is not None else shares.get(step.dy, 1)
                shares[step.out] = own + (shares.get(step.skip, 1) if step.skip is not None else 0)
            assert shares[steps[-1].out] == reads[tensor], f"{name}: the last sum has not the share of every consumer"


def reads_before_the_loss(train: TrainGraph) -> Counter[int]:
    """Per tensor, how often ops read it whose output the loss depends on."""
    reads: Counter[int] = Counter()
    for op in reversed(train.graph.ops):
        if op.outputs[0] == train.loss_tensor or reads[op.outputs[0]]:
            reads.update(op.inputs)
    return reads


def test_a_consumer_that_the_loss_does_not_see_has_no_share() -> None:
    """The masks of the stem wait for its consumers; an op whose output nobody reads is none of them."""
    b = GraphBuilder((1, 4, 4, 2), 1)
    stem = b.conv(b.input, 4, activation=Activation.RELU)
    b.unary(stem, Function.TANH)
    graph = b.finish(b.linear(b.mean(stem), 3))
    made = [s for s in train_graph(graph, parse_scheme("all", graph)).backward if isinstance(s, MakeError)]
    assert [(s.tensor, s.masked) for s in made if s.tensor == stem] == [(stem, True)]


def test_error_numbers_are_made_before_they_are_read() -> None:
    for graph in map(normalize, [*(build(1) for build in GRAPHS.values()), *(with_op(body) for body in BODIES)]):
        known = {0}
        for step in differentiate(graph, parse_scheme("all", graph)).backward:
            assert step.dy in known
            if isinstance(step, MakeError):
                assert step.skip is None or step.skip in known
                assert step.out not in known
                known.add(step.out)


def test_the_update_of_a_layer_stands_behind_the_error_that_needs_its_old_weights() -> None:
    for graph in map(normalize, [*(build(1) for build in GRAPHS.values()), *(with_op(body) for body in BODIES)]):
        updated: set[str] = set()
        for step in differentiate(graph, parse_scheme("all", graph)).backward:
            if isinstance(step, MakeError):
                assert step.op is None or step.op.name not in updated
            else:
                updated.add(step.op.name)


def test_a_tensor_added_to_itself_gets_twice_the_error() -> None:
    b = GraphBuilder((1, 4, 4, 2), 1)
    stem = b.conv(b.input, 4)
    graph = b.finish(b.linear(b.mean(b.add(stem, stem)), 3))
    made = [s for s in train_graph(graph, parse_scheme("all", graph)).backward if isinstance(s, MakeError)]
    assert made[-1].tensor == stem and made[-1].skip == made[-1].dy
    machine = Machine(apart(compile_graph(graph, "all")).plan)
    machine.observe = seen = _Errors()
    machine.train(random_samples(graph, 1)[0], 0, 0.0, 0.0)
    into, out = seen.pairs["add_bwd_x_s8"]
    assert np.abs(np.clip(2 * into, -127, 127) - out).max() == 0 and np.abs(out).max() > 0


class _Errors:
    """Remembers dy and dx of the last error step of each kind; a sum keeps its exponent."""

    def __init__(self) -> None:
        self.pairs: dict[str, tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]] = {}

    def __call__(self, index: int, kind: str, arrays: Mapping[str, npt.NDArray[np.generic]]) -> None:
        if "dx" in arrays:
            shift = int(np.asarray(arrays["ry"])["r"][0]) - int(np.asarray(arrays["rx"])["r"][0])
            assert shift == 0 or kind != "add_bwd_x_s8"
            self.pairs[kind] = np.asarray(arrays["dy"], np.int64), np.asarray(arrays["dx"], np.int64)


def test_three_consumers_give_three_shares() -> None:
    """double_residual: conv_0 is read by conv_1 and by two additions."""
    graph = double_residual(1)
    train = train_graph(graph, parse_scheme("weights:conv_0", graph))
    stem = next(op for op in graph.ops if op.name == "conv_0").outputs[0]
    made = [s for s in train.backward if isinstance(s, MakeError) and s.tensor == stem]
    # The addition behind hands its own error on as the first share; the next two are added to it.
    assert [s.skip is not None for s in made] == [True, True]


# ---- refusals -----------------------------------------------------------------------------------------------------------


def test_a_model_without_classifier_is_refused() -> None:
    b = GraphBuilder((1, 4, 4, 2), 1)
    graph = b.finish(b.conv(b.input, 4))
    with pytest.raises(ModelError, match="conv_0, not in a classifier"):
        compile_graph(graph, "head")
    assert only_predict(normalize(graph)).head is None


def test_a_clamped_head_is_refused() -> None:
    b = GraphBuilder((1, 8), 1)
    with pytest.raises(ModelError, match="fused relu"):
        compile_graph(b.finish(b.linear(b.input, 4, activation=Activation.RELU)), "head")


def test_a_head_of_several_rows_is_refused() -> None:
    b = GraphBuilder((3, 8), 1)
    with pytest.raises(ModelError, match="3 rows"):
        compile_graph(b.finish(b.linear(b.input, 4)), "head")


def test_a_head_of_one_output_is_refused() -> None:
    b = GraphBuilder((1, 8), 1)
    with pytest.raises(ModelError, match="1 output"):
        compile_graph(b.finish(b.linear(b.input, 1)), "head")


def _both_spread(b: GraphBuilder, x: int) -> int:
    return b.mul(b.mean(x, keep_dims=True), b.pool(x, (4, 1), (4, 1)))


def _spread_maximum(b: GraphBuilder, x: int) -> int:
    return b.minmax(x, b.mean(x, keep_dims=True), largest=True)


@pytest.mark.parametrize(
    "spread, say",
    [
        (_both_spread, None),
        (lambda b, x: b.add(b.pool(x, (1, 4), (1, 4)), b.pool(x, (4, 1), (4, 1))), "add_0 spreads both of its inputs"),
        (lambda b, x: b.minmax(b.pool(x, (1, 4), (1, 4)), b.pool(x, (4, 1), (4, 1)), largest=True), "maximum_0 spreads both"),
        (_spread_maximum, "maximum_0 has no gradient for an input that is spread"),
    ],
)
def test_what_spreads_without_gradient_may_stand_in_the_frozen_part(spread: Callable[[GraphBuilder, int], int], say: str | None) -> None:
    b = GraphBuilder((1, 4, 4, 2), 1)
    graph = b.finish(b.linear(b.mean(spread(b, b.conv(b.input, 3))), 4))
    assert len(compile_graph(graph, "head").train.backward) == 2
    if say is None:
        compile_graph(graph, "all")
        return
    with pytest.raises(ModelError, match=say) as caught:
        compile_graph(graph, "all")
    assert "train only layers behind" in str(caught.value)


def test_a_value_spread_over_too_many_has_no_gradient() -> None:
    """66,000 products are what an int32 accumulator can sum."""
    b = GraphBuilder((1, 260, 260, 1), 1, samples=1)
    scalar = b.linear(b.mean(b.input), 1)
    graph = b.finish(b.linear(b.mean(b.mul(b.input, scalar)), 3))
    with pytest.raises(ModelError, match="mul_0 spreads one value over 67600, 66000 is the limit"):
        compile_graph(graph, "all")


def test_several_inputs_or_outputs_are_refused() -> None:
    b = GraphBuilder((1, 4), 1)
    with pytest.raises(ModelError, match="2 inputs and 1 outputs"):
        compile_graph(b.finish(b.linear(b.add(b.input, b.new_input((1, 4))), 3)), "head")
    b = GraphBuilder((1, 4), 1)
    y = b.linear(b.input, 3)
    with pytest.raises(ModelError, match="1 inputs and 2 outputs"):
        compile_graph(b.finish(y, b.softmax(y)), "head")


# ---- the end of the net -------------------------------------------------------------------------------------------------


def _logits(b: GraphBuilder) -> int:
    return b.linear(b.input, 3)


def _logit(b: GraphBuilder) -> int:
    return b.linear(b.input, 1)


End = Callable[[GraphBuilder], int]


@pytest.mark.parametrize(
    "end, loss, found, head, behind, classes, step",
    [
        (_logits, None, Loss.XENT, "linear_0", None, 3, "xent_s32"),
        (lambda b: b.softmax(_logits(b)), None, Loss.XENT, "linear_0", "softmax_0", 3, "xent_s32"),
        (lambda b: b.softmax(_logits(b)), Loss.XENT, Loss.XENT, "linear_0", "softmax_0", 3, "xent_s32"),
        (lambda b: b.unary(_logit(b), Function.LOGISTIC), None, Loss.BCE, "linear_0", "logistic_0", 2, "bce_s32"),
        (_logit, Loss.BCE, Loss.BCE, "linear_0", None, 2, "bce_s32"),
        (_logits, Loss.MSE, Loss.MSE, "linear_0", None, 1, "mse_s32"),
        (_logit, Loss.MSE, Loss.MSE, "linear_0", None, 1, "mse_s32"),
        (lambda b: b.softmax(_logits(b)), Loss.MSE, Loss.MSE, None, None, 1, "mse_s8"),
        (lambda b: b.unary(_logit(b), Function.LOGISTIC), Loss.MSE, Loss.MSE, None, None, 1, "mse_s8"),
        (lambda b: b.linear(b.input, 3, activation=Activation.RELU), Loss.MSE, Loss.MSE, None, None, 1, "mse_s8"),
    ],
)
def test_the_loss_and_what_it_reads(
    end: End, loss: Loss | None, found: Loss, head: str | None, behind: str | None, classes: int, step: str
) -> None:
    b = GraphBuilder((1, 8), 1)
    compiled = compile_graph(b.finish(end(b)), "all", None, loss)
    train = compiled.train
    assert train.loss is found and train.classes == compiled.program.classes == classes
    assert [op.name if op else None for op in (train.head, train.behind)] == [head, behind]
    assert [s.kind.name for s in compiled.program.segments[2]] == [step]
    end_of_loss = train.graph.output if head is None else train.head.outputs[0]  # type: ignore[union-attr]
    assert train.loss_tensor == end_of_loss


@pytest.mark.parametrize(
    "end, loss, say",
    [
        (_logits, Loss.BCE, "3 outputs, binary cross-entropy takes 1"),
        (_logit, Loss.XENT, "1 output, cross-entropy needs 2"),
        (lambda b: b.unary(_logits(b), Function.LOGISTIC), None, "ends in logistic_0, not in a classifier"),
        (lambda b: b.softmax(_logits(b)), Loss.BCE, "ends in softmax_0, not in a classifier"),
        (lambda b: b.unary(_logits(b), Function.TANH), None, "ends in tanh_0, not in a classifier"),
        (lambda b: b.reshape(b.input, (8, 1)), Loss.MSE, "the model has no op"),
    ],
)
def test_a_loss_that_the_end_does_not_fit(end: End, loss: Loss | None, say: str) -> None:
    b = GraphBuilder((1, 8), 1)
    graph = b.finish(end(b))
    scheme = "all" if graph.layers else Scheme({0: 1.0}, frozenset())
    with pytest.raises(ModelError, match=say):
        if isinstance(scheme, str):
            compile_graph(graph, scheme, None, loss)
        else:
            differentiate(normalize(graph), scheme, loss)


def test_a_clamped_output_masks_the_error_of_the_loss() -> None:
    """mse_s8 reads behind the ReLU: where it is cut, nothing is to be learnt."""
    b = GraphBuilder((1, 4, 4, 2), 1)
    graph = b.finish(b.conv(b.input, 3, activation=Activation.RELU))
    compiled = apart(compile_graph(graph, "all", None, Loss.MSE))
    assert [s.kind.name for s in compiled.program.segments[3]] == ["add_bwd_x_s8", "conv2d_upd_q16", "bias_upd_s32", "tick"]
    machine, sample = Machine(compiled.plan), random_samples(graph, 1)[0]
    y = machine.predict(sample)
    seen: dict[str, npt.NDArray[np.generic]] = {}

    def observe(index: int, kind: str, arrays: Mapping[str, npt.NDArray[np.generic]]) -> None:
        if kind == "add_bwd_x_s8":
            seen["dy"], seen["dx"] = np.array(arrays["dy"]), np.array(arrays["dx"])

    machine.observe = observe
    machine.train(sample, 0, 0.0, 0.0, target=np.full(y.shape, 127, np.int8))
    assert 0 < (y == -128).sum() < y.size and (seen["dy"][y == -128] != 0).all()
    assert (seen["dx"] == np.where(y == -128, 0, seen["dy"])).all()


def test_a_copied_error_keeps_its_exponent() -> None:
    """What only moves is not rounded: the error of a slice, transpose or pad has the exponent of what it was copied from."""
    compiled = compile_graph(with_op("transpose"), "weights:conv_0")
    copies = [s for s in compiled.program.segments[3] if s.kind.name == "copy_s8"]
    update = next(s for s in compiled.program.segments[3] if s.kind.name == "conv2d_upd_q16")
    made = next(s for s in compiled.program.segments[3] if s.refs.get("dx") is copies[0].refs["x"])
    assert len(copies) == 1 and update.refs["dy"] is copies[0].refs["y"] and update.refs["ry"] is made.refs["rx"]


def test_a_scheme_of_missing_biases_is_refused() -> None:
    graph = rows(1)
    with pytest.raises(UsageError, match="biases of layers that have none"):
        compile_graph(graph, "bias:linear_0")
    with pytest.raises(UsageError, match="trains nothing"):
        differentiate(normalize(graph), Scheme({}, frozenset()))


def test_a_missing_bias_asks_for_no_errors() -> None:
    """bias:2 on a graph whose first layer has no bias trains the head's bias alone."""
    train = train_graph(rows(1), parse_scheme("bias:2", rows(1)))
    assert [type(step) for step in train.backward] == [UpdateBias]


def test_a_padded_pixel_is_no_vector_layer() -> None:
    """A 1x1 convolution of one pixel that reads padding only: a matrix times a vector would read the pixel."""
    b = GraphBuilder((1, 1, 1, 4), 1)
    y = b.conv(b.input, 3, (1, 1), pad=(0, 0, 0, 0))
    graph = b.finish(y)
    assert compile_graph(graph, "head").train.head is not None
    kind = Conv2D((2, 2), (1, 1), (1, 1, 0, 0), Activation.NONE)
    graph = replace(graph, ops=(replace(graph.ops[0], kind=kind),))
    with pytest.raises(ModelError, match="not in a classifier"):
        compile_graph(graph, "head")
