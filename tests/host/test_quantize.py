"""Post-training quantization: the int8 graph follows the scheme, does what the float graph did, runs elsewhere the same, and trains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from helpers.float_graphs import FloatNet, classifier, every_kind, samples
from helpers.shared import shared
from helpers.tiny_graphs import oracle, small_net
from mcugrad.errors import DataError, ModelError
from mcugrad.exporter import write_tflite
from mcugrad.graph import Activation, Add, Conv2D, Dequantize, DwConv2D, Function, Graph, Linear, Op, Pad, Quant, Quantize, Softmax, Unary
from mcugrad.importer import import_tflite, read_model
from mcugrad.native import NativeMachine
from mcugrad.pipeline import compile_graph
from mcugrad.quantize import Method, Options, predict_float, quantize_graph, run_float
from mcugrad.quantize.codes import BIAS_LIMIT, range_quant, to_codes, to_real
from mcugrad.quantize.observe import HALF, LEVELS, Observer
from mcugrad.quantize.samples import RealSet
from mcugrad.quantize.score import compare
from mcugrad.quantize.share import JOINING, KEEPING

METHODS = tuple(Method)
NETS = (classifier, every_kind)


def quant_of(graph: Graph, tensor: int) -> Quant:
    found = graph.tensors[tensor].quant
    assert found is not None
    return found


def relative_error(graph: Graph, quantized: Graph, x: npt.NDArray[np.float32]) -> float:
    """Root mean square of the outputs' difference over that of the outputs."""
    score = compare(graph, quantized, RealSet(x.reshape(len(x), *graph.tensors[graph.input].shape), None))
    return float(np.sqrt(score.mse / score.power))


def op_named(graph: Graph, name: str) -> Op:
    return next(op for op in graph.ops if op.name == name)


# ---- the scheme ------------------------------------------------------------------------------------------------------


def assert_follows_the_scheme(graph: Graph, *, per_channel_linear: bool = False) -> None:
    """What TensorFlow Lite demands of a full-int8 graph, op by op."""
    for op in graph.ops:
        ends = [quant_of(graph, i) for i in (op.inputs[0], *op.outputs)]
        assert all(len(q.scale) == 1 and q.scale[0] > 0 and -128 <= q.zero_point <= 127 for q in ends), op.name
        if isinstance(op.kind, KEEPING) or (isinstance(op.kind, Unary) and op.kind.function is Function.RELU6):
            assert ends[0] == ends[1], op.name
        if isinstance(op.kind, JOINING):
            assert {quant_of(graph, i) for i in op.inputs} == {ends[1]}, op.name
        if isinstance(op.kind, Pad):
            assert op.kind.value == ends[0].zero_point
        if isinstance(op.kind, Softmax) or (isinstance(op.kind, Unary) and op.kind.function is Function.LOGISTIC):
            assert ends[1] == Quant((1 / 256,), -128)
        if isinstance(op.kind, Unary) and op.kind.function is Function.TANH:
            assert ends[1] == Quant((1 / 128,), 0)
        if isinstance(op.kind, Conv2D | DwConv2D | Linear):
            assert_layer(graph, op, per_channel=per_channel_linear or not isinstance(op.kind, Linear))


def assert_layer(graph: Graph, op: Op, *, per_channel: bool) -> None:
    w = graph.tensors[op.inputs[1]]
    axis = 3 if isinstance(op.kind, DwConv2D) else 0
    assert w.dtype == np.int8 and w.data is not None and w.quant is not None
    assert w.quant.zero_point == 0 and len(w.quant.scale) == (w.shape[axis] if per_channel else 1)
    assert w.quant.axis == (axis if len(w.quant.scale) > 1 else 0)
    assert np.abs(w.data.astype(int)).max() == 127
    if len(op.inputs) > 2:
        b = graph.tensors[op.inputs[2]]
        assert b.dtype == np.int32 and b.quant is not None
        np.testing.assert_allclose(b.quant.scale, quant_of(graph, op.inputs[0]).scale[0] * np.array(w.quant.scale), rtol=1e-6)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("make", NETS)
def test_the_result_follows_the_scheme(make: Callable[[], Graph], method: Method) -> None:
    graph = make()
    for per_channel in (False, True):
        quantized = quantize_graph(graph, samples(graph), Options(method, per_channel_linear=per_channel))
        assert_follows_the_scheme(quantized, per_channel_linear=per_channel)
        assert quantized.notes == ()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("make", NETS)
def test_outputs_stay_close_on_new_samples(make: Callable[[], Graph], method: Method) -> None:
    graph = make()
    quantized = quantize_graph(graph, samples(graph, 64), Options(method))
    assert relative_error(graph, quantized, samples(graph, 64, seed=6)) < 0.02


def test_relu_takes_all_codes_above_zero() -> None:
    graph = classifier()
    quantized = quantize_graph(graph, samples(graph))
    for name in ("conv_0", "dwconv_0", "add_0"):
        assert quant_of(quantized, op_named(quantized, name).outputs[0]).zero_point == -128


def test_a_relu_of_its_own_is_fused() -> None:
    n = FloatNet()
    source = n.tensor((1, 6, 6, 3))
    x = n.unary(n.conv(source, 4), Function.RELU6)
    y = n.unary(n.add(x, n.unary(n.conv(x, 4), Function.RELU)), Function.RELU)
    graph = n.finish(source, y)
    quantized = quantize_graph(graph, samples(graph))
    assert [op.name for op in quantized.ops] == ["conv_0", "conv_1", "add_0"]
    assert [op.kind.activation for op in quantized.ops] == [Activation.RELU6, Activation.RELU, Activation.RELU]
    assert quantized.notes == ()
    assert relative_error(graph, quantized, samples(graph)) < 0.02


def test_a_relu_whose_input_is_read_elsewhere_stays() -> None:
    n = FloatNet()
    source = n.tensor((1, 6, 6, 3))
    x = n.conv(source, 3)
    graph = n.finish(source, n.add(x, n.unary(x, Function.RELU)))
    quantized = quantize_graph(graph, samples(graph))
    assert [op.name for op in quantized.ops] == ["conv_0", "relu_0", "add_0"]
    assert relative_error(graph, quantized, samples(graph)) < 0.02


def test_a_relu_of_the_models_output_stays() -> None:
    n = FloatNet()
    source = n.tensor((1, 6, 6, 3))
    x = n.conv(source, 3)
    graph = n.finish(source, n.unary(x, Function.RELU), x)
    assert [op.name for op in quantize_graph(graph, samples(graph)).ops] == ["conv_0", "relu_0"]


def test_a_relu6_of_its_own_does_not_rescale() -> None:
    """TensorFlow Lite Micro's RELU6 clamps the codes of its input and takes the output's scale for the same."""
    n = FloatNet()
    source = n.tensor((1, 6, 6, 3))
    graph = n.finish(source, n.unary(n.prelu(n.conv(source, 4)), Function.RELU6))
    quantized = quantize_graph(graph, 20 * samples(graph))
    assert [op.name for op in quantized.ops] == ["conv_0", "prelu_0", "relu6_0"]
    assert_follows_the_scheme(quantized)
    assert quant_of(quantized, quantized.output) == range_quant(0, 6)
    assert relative_error(graph, quantized, 20 * samples(graph)) < 0.03
    x = to_codes(20 * samples(graph, 5, seed=6)[:, None], quant_of(quantized, quantized.input))
    machine = NativeMachine(compile_graph(quantized, None).plan)
    for v, y in zip(x, oracle(write_tflite(quantized), list(x)), strict=True):
        np.testing.assert_array_equal(machine.predict(v), y.ravel())


def test_a_prescribed_quantization_is_brought_to_that_of_a_concatenation() -> None:
    n = FloatNet()
    source = n.tensor((1, 4, 4, 3))
    graph = n.finish(source, n.concat(n.unary(source, Function.LOGISTIC), source, n.unary(source, Function.TANH)))
    quantized = quantize_graph(graph, 4 * samples(graph))
    assert [op.name for op in quantized.ops] == ["logistic_0", "tanh_0", "requantize_0", "requantize_1", "concat_0"]
    assert_follows_the_scheme(quantized)
    assert relative_error(graph, quantized, 4 * samples(graph)) < 0.02


def test_equal_prescribed_quantizations_need_nothing_between() -> None:
    n = FloatNet()
    source = n.tensor((1, 4, 4, 3))
    a, b = n.unary(source, Function.LOGISTIC), n.unary(n.conv(source, 2), Function.LOGISTIC)
    graph = n.finish(source, n.pool(n.concat(a, b), (2, 2), (2, 2)))
    quantized = quantize_graph(graph, samples(graph))
    assert "requantize_0" not in [op.name for op in quantized.ops]
    assert quant_of(quantized, quantized.output) == Quant((1 / 256,), -128)
    assert_follows_the_scheme(quantized)


def test_weights_that_two_layers_share_get_a_bias_for_each() -> None:
    n = FloatNet()
    source = n.tensor((1, 4, 4, 3))
    first = n.conv(source, 3)
    w, b = n.ops[0].inputs[1:]
    scaled = n.pair(Add(Activation.NONE), first, n.constant([9.0]))
    graph = n.finish(source, n.op(n.ops[0].kind, (scaled, w, b), (1, 4, 4, 3)))
    quantized = quantize_graph(graph, samples(graph))
    assert_follows_the_scheme(quantized)
    assert relative_error(graph, quantized, samples(graph)) < 0.02


def test_float_border() -> None:
    graph = every_kind()
    quantized = quantize_graph(graph, samples(graph), Options(float_border=True))
    assert isinstance(quantized.ops[0].kind, Quantize) and isinstance(quantized.ops[-1].kind, Dequantize)
    ends = [quantized.tensors[i] for i in (quantized.input, quantized.output)]
    assert [(t.name, t.dtype) for t in ends] == [(graph.tensors[i].name, np.float32) for i in (graph.input, graph.output)]
    inputs = list(samples(graph, 4, seed=9)[:, None])
    expected = np.stack([predict_float(graph, x) for x in inputs])
    np.testing.assert_allclose(oracle(write_tflite(quantized), inputs).reshape(expected.shape), expected, atol=0.02)


def test_several_outputs_and_inputs() -> None:
    n = FloatNet()
    a, b = n.tensor((1, 4)), n.tensor((1, 6))
    total = n.add(n.linear(a, 5), n.linear(b, 5))
    graph = replace(n.finish(a, total, n.softmax(total)), inputs=(a, b))
    rng = np.random.default_rng(0)
    quantized = quantize_graph(graph, (rng.normal(0, 1, (20, 4)), rng.normal(0, 30, (20, 6))))
    assert len(quantized.inputs) == len(quantized.outputs) == 2
    assert quant_of(quantized, quantized.inputs[1]).scale[0] > 10 * quant_of(quantized, quantized.inputs[0]).scale[0]


# ---- the file and the board's runtime --------------------------------------------------------------------------------


@pytest.mark.parametrize("make", NETS)
def test_runtime_file_and_oracle_give_the_same_bytes(make: Callable[[], Graph]) -> None:
    graph = make()
    quantized = quantize_graph(graph, samples(graph))
    data = write_tflite(quantized)
    machine = NativeMachine(compile_graph(import_tflite(data, "again"), None).plan)
    inputs = [to_codes(2 * x[None], quant_of(quantized, quantized.input)) for x in samples(graph, 40, seed=8)]
    expected = oracle(data, inputs)
    assert np.ptp(expected.astype(int)) > 20
    for x, y in zip(inputs, expected, strict=True):
        np.testing.assert_array_equal(machine.predict(x), y.ravel())


def test_the_quantized_model_trains() -> None:
    graph = classifier()
    quantized = quantize_graph(graph, samples(graph))
    x = samples(graph, 60, seed=3)
    labels = [int(v.mean() > 0) for v in x]
    codes = to_codes(x, quant_of(quantized, quantized.input))
    machine = NativeMachine(compile_graph(quantized, "all").plan)
    losses = [[machine.train(q, label, 0.02).loss for q, label in zip(codes, labels, strict=True)] for _ in range(8)]
    assert np.mean(losses[-1]) < 0.7 * np.mean(losses[0])


# ---- odd weights and biases ------------------------------------------------------------------------------------------


def one_conv(change: Callable[[npt.NDArray[np.float32], npt.NDArray[np.float32]], None]) -> Graph:
    """A 1 x 1 convolution 3 -> 4 whose weights (4, 1, 1, 3) and bias (4,) ``change`` alters in place."""
    n = FloatNet()
    source = n.tensor((1, 5, 5, 3))
    graph = n.finish(source, n.conv(source, 4, (1, 1)))
    w, b = (graph.tensors[i].data for i in graph.ops[0].inputs[1:])
    change(w, b)
    return graph


def outputs(graph: Graph, quantized: Graph, x: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Float and int8 outputs, (N, 5, 5, 4)."""
    machine = NativeMachine(compile_graph(quantized, None).plan)
    codes = to_codes(x, quant_of(quantized, quantized.input))
    real = [to_real(machine.predict(q), quant_of(quantized, quantized.output)) for q in codes]
    return np.stack([predict_float(graph, v)[0] for v in x]), np.stack(real).reshape(len(x), 5, 5, 4)


def test_a_zero_channel_keeps_its_bias() -> None:
    """A pruned channel with a bias is a constant, not zero; its scale must let it train."""

    def prune(w: npt.NDArray[np.float32], b: npt.NDArray[np.float32]) -> None:
        w[1:3] = 0
        b[1], b[2] = 0.75, 0

    graph = one_conv(prune)
    quantized = quantize_graph(graph, samples(graph))
    assert any("2 channels have only zero weights" in note and "conv_0" in note for note in quantized.notes)
    scale = quantized.tensors[quantized.ops[0].inputs[1]].quant.scale
    assert scale[1] == scale[2] == max(scale[0], scale[3])
    expected, got = outputs(graph, quantized, samples(graph))
    step = quant_of(quantized, quantized.output).scale[0]
    assert np.abs(got[..., 1] - 0.75).max() <= step
    assert np.abs(got[..., 2]).max() == 0
    assert np.abs(got - expected).max() < 3 * step


def test_a_layer_of_zeros() -> None:
    graph = one_conv(lambda w, b: (w.fill(0), b.fill(0.25)))
    quantized = quantize_graph(graph, samples(graph))
    _, got = outputs(graph, quantized, samples(graph, 2))
    assert np.abs(got - 0.25).max() < 0.01


@pytest.mark.parametrize(
    ("weight", "note"),
    [
        (1e-3, ""),
        (1e-12, "1 weight scales are larger"),
        (1e-18, "1 weight scales are larger"),
        (1e-30, "1 channels have only zero weights"),
    ],
)
def test_a_bias_that_would_leave_int32_widens_the_scale(weight: float, note: str) -> None:
    """Folded batch norms leave channels with hardly any weight and an ordinary bias: 0.9 / (s_x · s_w) passes 2^31."""

    def shrink(w: npt.NDArray[np.float32], b: npt.NDArray[np.float32]) -> None:
        w[2] *= weight
        b[2] = 0.9

    graph = one_conv(shrink)
    quantized = quantize_graph(graph, samples(graph))
    assert np.abs(quantized.tensors[quantized.ops[0].inputs[2]].data.astype(np.int64)).max() <= BIAS_LIMIT
    assert (note in " ".join(quantized.notes)) if note else not quantized.notes
    _, got = outputs(graph, quantized, samples(graph))
    assert np.abs(got[..., 2] - 0.9).max() <= quant_of(quantized, quantized.output).scale[0]


def test_a_linear_layer_widens_its_one_scale() -> None:
    n = FloatNet()
    source = n.tensor((1, 8))
    graph = n.finish(source, n.linear(source, 4))
    w, b = (graph.tensors[i].data for i in graph.ops[0].inputs[1:])
    w *= np.float32(1e-14)
    b[:] = (1.0, -2.0, 0.5, 0.0)
    quantized = quantize_graph(graph, samples(graph))
    assert any("weight scales are larger" in note for note in quantized.notes)
    assert np.abs(quantized.tensors[quantized.ops[0].inputs[2]].data.astype(np.int64)).max() <= BIAS_LIMIT
    assert relative_error(graph, quantized, samples(graph)) < 0.01


# ---- odd data --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (np.zeros((4, 8, 8, 3)), "tensor t0 is 0 throughout"),
        (np.full((4, 8, 8, 3), 7.5), "tensor t0 is 7.5 throughout"),
        (
            np.where(np.arange(4 * 192).reshape(4, 8, 8, 3) == 500, np.nan, 1.0),
            "tensor t0 has NaN .* in 1 of 4 samples, the first is sample 2",
        ),
        (np.where(np.arange(4 * 192).reshape(4, 8, 8, 3) > 500, np.inf, 1.0), "tensor t0 has NaN .* in 2 of 4 samples"),
        (np.zeros((0, 8, 8, 3)), "tensor t0 is empty"),
        (np.ones((4, 8, 8, 2)), r"tensor t0 has samples of shape \(8, 8, 2\)"),
    ],
)
def test_data_that_says_nothing_names_the_tensor(data: npt.NDArray[np.float64], text: str) -> None:
    with pytest.raises(DataError, match=text) as caught:
        quantize_graph(classifier(), data)
    assert caught.value.exit_code == 4 and caught.value.hint


def test_a_value_that_explodes_inside_names_the_tensor() -> None:
    graph = one_conv(lambda w, b: w.fill(3e38))
    with pytest.raises(DataError, match=f"tensor {graph.tensors[graph.output].name} becomes NaN or infinite on calibration sample 0"):
        quantize_graph(graph, 100 * samples(graph))


def test_an_activation_that_stays_zero_gets_a_range_and_a_note() -> None:
    n = FloatNet()
    source = n.tensor((1, 5, 5, 3))
    dead = n.conv(source, 4, (1, 1), activation=Activation.RELU)
    graph = n.finish(source, n.conv(dead, 2))
    graph.tensors[graph.ops[0].inputs[2]].data[:] = -1000
    quantized = quantize_graph(graph, samples(graph))
    assert quant_of(quantized, quantized.ops[0].outputs[0]) == range_quant(0, 1)
    assert any("0 in every calibration sample" in note and graph.tensors[dead].name in note for note in quantized.notes)
    assert relative_error(graph, quantized, samples(graph)) < 0.01


def test_a_range_too_small_for_a_scale_is_widened() -> None:
    graph = one_conv(lambda w, b: (w.__imul__(1e-9), b.fill(0)))
    quantized = quantize_graph(graph, samples(graph))
    assert any("span less than 1e-06" in note for note in quantized.notes)
    assert quant_of(quantized, quantized.output).scale[0] == pytest.approx(1e-6 / 255)


def test_only_float_models() -> None:
    with pytest.raises(ModelError, match="quantized already"):
        quantize_graph(small_net(), np.ones((1, 6, 5, 2)))


# ---- methods ---------------------------------------------------------------------------------------------------------


def test_an_outlier_ruins_minmax_and_not_percentile() -> None:
    graph = classifier()
    x = samples(graph, 400)
    x[5, 2, 2, 1] = 500
    held_out = samples(graph, 64, seed=6)
    plain = relative_error(graph, quantize_graph(graph, x), held_out)
    clipped = quantize_graph(graph, x, Options(Method.PERCENTILE, percentile=99.9))
    assert relative_error(graph, clipped, held_out) < 0.4 * plain


def test_percentile_counts_the_values_at_each_end() -> None:
    values = np.random.default_rng(0).permutation(np.arange(-5000, 15001) / 1000)
    observer = Observer()
    for part in np.array_split(values, 7):
        observer.see(part)
    for percentile in (90.0, 99.0, 99.9):
        low, high = observer.range(Method.PERCENTILE, percentile)
        kept = [np.count_nonzero(values >= low), np.count_nonzero(values <= high)]
        assert all(percentile / 100 <= k / len(values) <= percentile / 100 + 0.001 for k in kept)
    assert observer.range(Method.PERCENTILE, 100.0) == (-5.0, 15.0)
    assert observer.range(Method.MINMAX, 99.0) == (-5.0, 15.0)


@pytest.mark.parametrize("shape", ["normal", "laplace", "relu"])
def test_least_squares_finds_the_best_bounds(shape: str) -> None:
    rng = np.random.default_rng(1)
    values = rng.laplace(0, 1, 20_000) if shape == "laplace" else rng.normal(0, 1, 20_000)
    values = np.maximum(values, 0) if shape == "relu" else values
    observer = Observer()
    observer.see(values)

    def error(low: float, high: float) -> float:
        q = range_quant(low, high)
        return float(((to_real(to_codes(values, q), q) - values) ** 2).mean())

    found = error(*observer.range(Method.MSE, 0))
    grid = np.linspace(0.3, 1, 15)
    best = min(error(a * values.min(), b * values.max()) for a in grid for b in grid)
    assert found < 1.02 * best
    assert shape != "laplace" or found < 0.98 * error(values.min(), values.max())


def test_the_histogram_grows_without_losing_values() -> None:
    observer = Observer()
    rng = np.random.default_rng(2)
    for scale in (1e-6, 1e-3, 0.5, 1e-5, 300.0):
        observer.see(scale * rng.normal(0, 1, 1000))
    observer.see(np.zeros(77))
    assert observer.counts.sum() == 5000 and observer.zeros == 77
    assert observer.width * HALF >= max(-observer.low, observer.high) > observer.width * HALF / 2
    negative = observer.counts[:HALF].sum()
    assert 2000 < negative < 3000


def test_constants_are_never_clipped() -> None:
    n = FloatNet()
    source = n.tensor((1, 4, 4, 3))
    graph = n.finish(source, n.concat(source, n.constant(np.full((1, 4, 4, 1), 50.0))))
    for method in METHODS:
        quantized = quantize_graph(graph, samples(graph), Options(method))
        q = quant_of(quantized, quantized.output)
        assert q.scale[0] * (127 - q.zero_point) >= 49.9


@pytest.mark.parametrize(("low", "high"), [(0, 1), (-1, 0), (-3, 5), (-1e-3, 1e4), (-1e30, 1e30), (-2e-7, 3e-7), (0, 0)])
def test_zero_is_exact_and_the_range_fits(low: float, high: float) -> None:
    q = range_quant(low, high)
    assert to_real(to_codes(np.zeros(1), q), q)[0] == 0
    real = to_real(to_codes(np.array([low, high]), q), q)
    assert np.abs(real - (low, high)).max() <= 0.51 * q.scale[0]
    assert LEVELS * q.scale[0] >= 0.999999 * (high - low)


def test_calibration_reports_its_progress() -> None:
    graph = classifier()
    ticks: list[int] = []
    quantize_graph(graph, samples(graph, 9), advance=lambda: ticks.append(1))
    assert len(ticks) == 9


def test_each_model_is_judged_by_its_own_outputs() -> None:
    graph, other = classifier(), classifier()
    x = samples(graph, 20)
    w, b = (other.tensors[i].data for i in op_named(other, "linear_0").inputs[1:])
    w *= -1
    b *= -1
    data = RealSet(x[:, None], np.array([int(predict_float(graph, v).argmax()) for v in x]))
    score = compare(graph, quantize_graph(other, x), data)
    assert score.float_accuracy == 1 and score.int8_accuracy < 0.5


def test_the_first_of_several_outputs_is_judged() -> None:
    n = FloatNet()
    source = n.tensor((1, 6))
    first = n.linear(source, 3)
    graph = n.finish(source, first, n.linear(first, 4))
    assert relative_error(graph, quantize_graph(graph, samples(graph)), samples(graph)) < 0.02


def test_the_float_graph_is_left_alone() -> None:
    graph = every_kind()
    before = run_float(graph, (samples(graph, 1)[0],))[graph.output]
    quantize_graph(graph, samples(graph))
    np.testing.assert_array_equal(run_float(graph, (samples(graph, 1)[0],))[graph.output], before)


# ---- real models -----------------------------------------------------------------------------------------------------


MNIST = ("emlearn/mnist_cnn_fp32", "mnist_t10k", "", 255)
RESNET = ("mlperf_tiny/pretrainedResnet_float", "cifar10_jpeg_subset", "_test", 1)


@pytest.mark.parametrize(("case", "method"), [*((MNIST, m) for m in METHODS), (RESNET, Method.MINMAX)])
def test_real_models_keep_their_accuracy(case: tuple[str, str, str, int], method: Method) -> None:
    model, data, part, divisor = case
    graph = read_model(shared(f"models/{model}.tflite"), allow_float=True)
    with np.load(shared(f"datasets/{data}.npz")) as file:
        order = np.random.default_rng(0).permutation(len(file[f"x{part}"]))[:500]
        x, y = file[f"x{part}"][order] / np.float32(divisor), file[f"y{part}"][order].astype(np.int64)
    quantized = quantize_graph(graph, x[:60], Options(method))
    assert_follows_the_scheme(quantized)
    score = compare(graph, quantized, RealSet(x[60:].reshape(-1, *graph.tensors[graph.input].shape), y[60:]))
    assert score.float_accuracy > 0.7
    assert score.int8_accuracy > score.float_accuracy - 0.015
