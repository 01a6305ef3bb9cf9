"""mcugrad quantize as a user meets it, and the data files that it reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from helpers.cli import mcugrad
from helpers.float_graphs import FloatNet, classifier, float_file, samples
from helpers.tiny_graphs import oracle, small_net
from mcugrad.errors import DataError
from mcugrad.exporter import write_tflite
from mcugrad.graph.edit import input_of, output_of
from mcugrad.importer import read_model
from mcugrad.quantize import predict_float
from mcugrad.quantize.codes import to_codes
from mcugrad.quantize.samples import load_real


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "float.tflite"
    path.write_bytes(float_file(classifier()))
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """60 samples with the labels that the float model gives them."""
    return save(tmp_path / "calib.npz", samples(classifier(), 60))


def save(path: Path, x: npt.NDArray[np.generic]) -> Path:
    graph = classifier()
    np.savez(path, x=x, y=[predict_float(graph, v).argmax() for v in x])
    return path


def test_both_models_side_by_side(model: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "int8.tflite"
    held_out = save(tmp_path / "held_out.npz", samples(classifier(), 50, seed=6))
    result = mcugrad("quantize", model, "--data", data, "--eval", held_out, "-o", out, "--json").result
    assert result["accuracy"]["float"] == 1.0
    assert 0.9 <= result["accuracy"]["int8"] <= 1.0
    assert result["samples"] == 50 and result["calibration_samples"] == 60
    assert result["bytes"] == {"float": model.stat().st_size, "int8": out.stat().st_size}
    assert 0 < result["mse"] < 1e-3 * result["power"]


def test_the_int8_accuracy_is_that_of_the_file_elsewhere(model: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "int8.tflite"
    result = mcugrad("quantize", model, "--data", data, "--out", out, "--json").result
    with np.load(data) as file:
        x, y = file["x"], file["y"]
    graph = read_model(out)
    outputs = oracle(out.read_bytes(), [to_codes(v[None], input_of(graph).quant) for v in x])
    assert output_of(graph).quant.scale == (1 / 256,)
    assert result["accuracy"]["int8"] == pytest.approx((outputs.reshape(60, -1).argmax(axis=1) == y).mean())


def test_text_shows_accuracy_bytes_and_where_the_model_is(model: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "int8.tflite"
    done = mcugrad("quantize", model, "--data", data, "-o", out)
    assert done.code == 0
    for text in (
        "output t15: int8, scale 0.00390625, zero point -128",
        "accuracy",
        "100.00 %",
        "bytes",
        f"{model.stat().st_size:,}",
        f"wrote {out}",
    ):
        assert text in done.out


def test_the_new_model_can_be_planned_for_training(model: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "int8.tflite"
    assert mcugrad("quantize", model, "--data", data, "--out", out).code == 0
    result = mcugrad("plan", out, "--train", "head", "--board", "host", "--json").result
    assert result["trained_weights"] == 8 * 4 and result["trained_biases"] == 4


def test_without_labels_outputs_are_compared(model: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=samples(classifier(), 20))
    result = mcugrad("quantize", model, "--data", tmp_path / "x.npz", "-o", tmp_path / "o.tflite", "--json").result
    assert result["accuracy"] == {"float": None, "int8": None}
    assert result["mse"] > 0


@pytest.mark.parametrize("options", [("--method", "mse"), ("--method", "percentile", "--percentile", "99.9"), ("--per-channel-linear",)])
def test_options_change_the_model(model: Path, data: Path, tmp_path: Path, options: tuple[str, ...]) -> None:
    for name, more in (("a", ()), ("b", options)):
        assert mcugrad("quantize", model, "--data", data, "-o", tmp_path / name, *more).code == 0
    assert (tmp_path / "a").read_bytes() != (tmp_path / "b").read_bytes()


def test_float_border(model: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "o.tflite"
    result = mcugrad("quantize", model, "--data", data, "-o", out, "--io", "float", "--json").result
    graph = read_model(out)
    assert graph.tensors[graph.input].dtype == graph.tensors[graph.output].dtype == np.float32
    assert result["accuracy"]["int8"] >= 0.9


def test_few_of_many_samples_are_enough(model: Path, data: Path, tmp_path: Path) -> None:
    result = mcugrad("quantize", model, "--data", data, "-o", tmp_path / "o.tflite", "--samples", 7, "--json").result
    assert result["calibration_samples"] == 7 and result["samples"] == 60


@pytest.mark.parametrize(
    ("x", "text"),
    [
        (np.zeros((5, 8, 8, 3)), "calib.npz: .*tensor t0 is 0 throughout"),
        (np.full((5, 8, 8, 3), 3.5), "tensor t0 is 3.5 throughout"),
        (np.full((5, 8, 8, 3), np.nan), "NaN"),
        (np.zeros((0, 8, 8, 3)), "no samples"),
        (np.zeros((5, 8, 8, 3), np.int8), "x is int8: a float model needs float values"),
        (np.ones((5, 7, 8, 3)), r"samples of shape \(7, 8, 3\)"),
    ],
)
def test_data_that_says_nothing_is_refused(model: Path, tmp_path: Path, x: npt.NDArray[np.generic], text: str) -> None:
    np.savez(tmp_path / "calib.npz", x=x)
    out = tmp_path / "o.tflite"
    mcugrad("quantize", model, "--data", tmp_path / "calib.npz", "-o", out).fails(4, text)
    assert not out.exists()


def test_labels_beyond_the_classes(model: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "calib.npz", x=samples(classifier(), 5), y=[0, 1, 4, 0, 0])
    mcugrad("quantize", model, "--data", tmp_path / "calib.npz", "-o", tmp_path / "o").fails(4, "sample 2 has label 4")


def test_an_int8_model_needs_no_quantization(data: Path, tmp_path: Path) -> None:
    path = tmp_path / "int8.tflite"
    path.write_bytes(write_tflite(small_net()))
    mcugrad("quantize", path, "--data", data, "-o", tmp_path / "o.tflite").fails(3, "int8.tflite is quantized already", "mcugrad train")


def test_the_model_is_not_overwritten(model: Path, data: Path) -> None:
    before = model.read_bytes()
    mcugrad("quantize", model, "--data", data, "-o", model).fails(2, "is the model itself")
    assert model.read_bytes() == before


def test_uint8_means_0_to_255_or_0_to_1(tmp_path: Path) -> None:
    n = FloatNet()
    source = n.tensor((1, 2, 2, 1))
    graph = n.finish(source, n.conv(source, 1))
    path = tmp_path / "x.npz"
    np.savez(path, x=np.array([[0, 51], [102, 255]], np.uint8).reshape(1, 2, 2))
    plain, unit = load_real(path, graph), load_real(path, graph, unit=True)
    assert plain.x.shape == (1, 1, 2, 2, 1) and plain.x.dtype == np.float32
    assert plain.x.ravel().tolist() == [0, 51, 102, 255]
    np.testing.assert_allclose(unit.x.ravel(), [0, 0.2, 0.4, 1], rtol=1e-6)
    assert "--unit" in plain.notes[0] and unit.notes


def test_targets_are_no_labels(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=samples(classifier(), 4), y=np.zeros((4, 4), np.float32))
    found = load_real(tmp_path / "x.npz", classifier())
    assert found.y is None and "no class numbers" in found.notes[0]


def test_a_file_is_for_one_input(tmp_path: Path) -> None:
    n = FloatNet()
    a, b = n.tensor((1, 4)), n.tensor((1, 4))
    graph = n.finish(a, n.add(a, b))
    np.savez(tmp_path / "x.npz", x=np.ones((3, 4)))
    with pytest.raises(DataError, match=r"2 inputs \(t0, t1\)"):
        load_real(tmp_path / "x.npz", type(graph)(graph.name, graph.tensors, graph.ops, (a, b), graph.outputs))
