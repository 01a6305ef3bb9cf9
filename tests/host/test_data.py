"""Data set files: what they become, and what is refused."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest

from helpers.shared import shared
from helpers.tiny_graphs import TinyNet
from mcugrad.data import DataSet, check_labels, load, load_regression
from mcugrad.errors import DataError
from mcugrad.graph import Function, Graph, Quant, Unary
from mcugrad.importer import read_model


def net(shape: tuple[int, ...] = (1, 4, 1, 3), scale: float = 0.5, zero_point: int = -3) -> Graph:
    n = TinyNet()
    source = n.activation(shape, scale, zero_point)
    return n.finish(source, n.reshape(source, shape))


@pytest.fixture
def save(tmp_path: Path):
    def _save(**arrays) -> Path:
        path = tmp_path / "data.npz"
        np.savez(path, **arrays)
        return path

    return _save


X = np.arange(-12, 12, dtype=np.int8).reshape(2, 4, 3)
Y = np.array([0, 1], np.uint8)


def test_int8_is_taken_as_it_is(save) -> None:
    data = load(save(x=X, y=Y, speaker=np.zeros(2)), net())
    assert data.x.shape == (2, 4, 1, 3)
    np.testing.assert_array_equal(data.x.reshape(X.shape), X)
    assert data.y.dtype == np.int64
    assert data.notes == ()
    assert len(data) == 2


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_float_is_quantized_half_away_from_zero(save, dtype) -> None:
    x = np.array([0, 0.25, -0.25, 0.74, 0.75, 1, 63, 65, 66, -62.5, -63, 1000], dtype).reshape(1, 4, 3)
    data = load(save(x=x, y=Y[:1]), net())
    assert data.x.reshape(-1).tolist() == [-3, -2, -4, -2, -1, -1, 123, 127, 127, -128, -128, 127]
    assert data.notes == (
        f"x is {np.dtype(dtype)}, taken as real values, quantized with scale 0.5 and zero point -3",
        "3 of 12 values (25 %) lie outside -62.5 to 65 and were clipped",
    )


def test_just_below_a_half_rounds_down(save) -> None:
    x = np.full((1, 4, 3), np.nextafter(np.float32(0.5), np.float32(0)))
    assert (load(save(x=x, y=Y[:1]), net(scale=1.0)).x == -3).all()


def test_uint8_is_the_real_value(save) -> None:
    x = np.arange(12, dtype=np.uint8).reshape(1, 4, 3)
    data = load(save(x=x, y=Y[:1]), net(scale=1.0, zero_point=-128))
    assert data.x.reshape(-1).tolist() == list(range(-128, -116))
    assert "taken as the real values 0 to 255" in data.notes[0]


def test_uint8_for_a_model_of_0_to_1_is_divided(save) -> None:
    x = np.array([0, 1, 2, 3, 4, 5, 6, 127, 128, 200, 254, 255], np.uint8).reshape(1, 4, 3)
    data = load(save(x=x, y=Y[:1]), net(scale=1 / 255, zero_point=-128))
    assert (data.x.reshape(-1).astype(int) + 128).tolist() == x.reshape(-1).tolist()
    assert "x / 255" in data.notes[0]


def test_a_float_model_uses_its_inner_scale(save) -> None:
    n = TinyNet()
    source = n.float_tensor((1, 3))
    graph = n.finish(source, n.quantize(source))
    data = load(save(x=np.array([[0, 0.04, 0.08]], np.float32), y=Y[:1]), graph)
    assert graph.tensors[1].quant == Quant((float(np.float32(0.04)),), 1)
    assert data.x.tolist() == [[1, 2, 3]]


@pytest.mark.parametrize("shape", [(2, 4, 3), (2, 4, 1, 3), (2, 1, 4, 3), (2, 4, 3, 1, 1)])
def test_sizes_of_one_do_not_matter(save, shape) -> None:
    np.testing.assert_array_equal(load(save(x=X.reshape(shape), y=Y), net()).x.reshape(X.shape), X)


def bad(value: float) -> np.ndarray:
    x = X.astype(np.float32)
    x[1, 2, 1] = value
    return x


REFUSED = {
    "no x": ({"y": Y}, "no array x, only y"),
    "no y": ({"x": X}, "no array y, only x"),
    "other names": ({"x_train": X}, "no array x, only x_train"),
    "another shape": ({"x": X[:, :3], "y": Y}, r"samples of shape \(3, 3\), the model's input is \(4, 1, 3\)"),
    "sizes in another order": ({"x": X.reshape(2, 3, 4), "y": Y}, r"samples of shape \(3, 4\)"),
    "NaN": ({"x": bad(np.nan), "y": Y}, r"1 values that are NaN or infinite, the first at \(1, 2, 1\)"),
    "infinity": ({"x": bad(-np.inf), "y": Y}, "1 values that are NaN or infinite"),
    "beyond float32": ({"x": X.astype(np.float64) * 1e300, "y": Y}, "23 values that are NaN or infinite"),
    "int32": ({"x": X.astype(np.int32), "y": Y}, "x is int32"),
    "bool": ({"x": X > 0, "y": Y}, "x is bool"),
    "complex": ({"x": X.astype(complex), "y": Y}, "x is complex128"),
    "text": ({"x": np.array(["a", "b"]), "y": Y}, "x is <U1"),
    "no samples": ({"x": X[:0], "y": Y[:0]}, "has no samples"),
    "a scalar": ({"x": np.int8(3), "y": Y}, "has no samples"),
    "float labels": ({"x": X, "y": Y.astype(np.float32)}, "y is float32"),
    "one-hot labels": ({"x": X, "y": np.eye(2, dtype=np.int8)}, r"y has shape \(2, 2\)"),
    "too many labels": ({"x": X, "y": np.zeros(3, int)}, "x has 2 samples and y has 3 labels"),
    "Python objects": ({"x": np.array([{}, {}], dtype=object), "y": Y}, "pickled Python objects"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(save, case: str) -> None:
    arrays, text = REFUSED[case]
    with pytest.raises(DataError, match=text) as caught:
        load(save(**arrays), net())
    assert caught.value.exit_code == 4
    assert caught.value.hint
    assert "data.npz" in caught.value.text


def test_pickled_objects_in_an_array_that_nobody_asked_for_do_no_harm(save) -> None:
    load(save(x=X, y=Y, names=np.array([{}], dtype=object)), net())


@pytest.mark.parametrize("content", [b"", b"0,1,2\n", bytes(64), b"PK\x03\x04" + bytes(60)])
def test_not_an_npz_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "data.npz"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"data.npz is not an .npz file"):
        load(path, net())


def test_an_npy_file(tmp_path: Path) -> None:
    path = tmp_path / "data.npy"
    np.save(path, X)
    with pytest.raises(DataError, match=r"data.npy is not an .npz file"):
        load(path, net())


def test_a_zip_archive_of_something_else(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    with zipfile.ZipFile(path, "w") as z:
        z.writestr("x.npy", b"this is no array")
        z.writestr("y.npy", b"this neither")
    with pytest.raises(DataError, match=r"data.npz"):
        load(path, net())


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no data file"):
        load(tmp_path / "none.npz", net())


def test_a_file_with_a_flipped_or_missing_part(save) -> None:
    path = save(x=X, y=Y)
    data = path.read_bytes()
    for at in range(0, len(data), 7):
        for damaged in (data[:at], data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :]):
            path.write_bytes(damaged)
            try:
                load(path, net())
            except DataError as error:
                assert error.hint


@pytest.mark.parametrize(
    ("labels", "text"),
    [
        ([0, 9, 10, 11], r"sample 2 has label 10, the model has 10 classes \(0 to 9\); 2 of 4"),
        ([0, -1], "sample 1 has label -1"),
    ],
)
def test_labels_out_of_range(labels: list[int], text: str) -> None:
    with pytest.raises(DataError, match=text):
        check_labels(DataSet(np.zeros((len(labels), 1), np.int8), np.array(labels)), 10)


def test_labels_in_range_come_back() -> None:
    y = np.arange(10)
    assert check_labels(DataSet(np.zeros((10, 1), np.int8), y), 10) is y
    with pytest.raises(DataError, match="no labels"):
        check_labels(DataSet(np.zeros((10, 1), np.int8), None), 10)


def test_a_label_beyond_int64_is_out_of_range(save) -> None:
    data = load(save(x=X, y=np.array([0, 2**64 - 1], np.uint64)), net())
    with pytest.raises(DataError, match="sample 1 has label 9223372036854775807"):
        check_labels(data, 10)


# ---- regression -----------------------------------------------------------------------------------------------------


def regression(inputs: int = 3, outputs: int = 2) -> Graph:
    """Input scale 0.5 and zero point -3, output scale 0.2 and zero point 4."""
    n = TinyNet()
    source = n.activation((1, inputs), 0.5, -3)
    return n.finish(source, n.linear(source, outputs))


SAMPLES = np.array([[0, 1, -1], [2.5, 3, 60]], np.float32)


def test_float_targets_are_quantized_with_the_outputs_scale(save) -> None:
    data = load_regression(save(x=SAMPLES, y=np.array([[0, 0.2], [-0.31, 100]])), regression())
    assert data.target.tolist() == [[4, 5], [2, 127]]
    assert data.target.dtype == np.int8 and data.y is None
    assert data.x.tolist() == [[-3, -1, -5], [2, 3, 117]]
    assert data.notes[1:] == (
        "y is float64, taken as real values, quantized with scale 0.2 and zero point 4",
        "1 of 4 values of y (25 %) lie outside -26.4 to 24.6 and were clipped",
    )


def test_int8_targets_are_taken_as_they_are(save) -> None:
    y = np.array([[1, -128], [127, 4]], np.int8)
    data = load_regression(save(x=SAMPLES, y=y), regression())
    np.testing.assert_array_equal(data.target, y)
    assert len(data.notes) == 1


@pytest.mark.parametrize("shape", [(2,), (2, 1), (2, 1, 1)])
def test_one_target_a_sample_may_be_a_plain_list(save, shape: tuple[int, ...]) -> None:
    data = load_regression(save(x=SAMPLES, y=np.ones(shape, np.float32)), regression(outputs=1))
    assert data.target.tolist() == [[9], [9]]


def test_without_y_the_target_is_the_real_value_of_x(save) -> None:
    """The autoencoder's input and output have different scales: the codes differ, the values do not."""
    data = load_regression(save(x=SAMPLES), regression(outputs=3))
    assert data.target.tolist() == [[4, 9, -1], [17, 19, 127]]
    assert "there is no y, the target is x itself" in data.notes[1]
    codes = load_regression(save(x=data.x), regression(outputs=3))
    np.testing.assert_array_equal(codes.target, data.target)


def test_without_y_uint8_of_a_0_to_1_model_is_divided_for_the_target_too(save) -> None:
    n = TinyNet()
    source = n.activation((1, 3), 1 / 255, -128)
    graph = n.finish(source, n.add_op(Unary(Function.REQUANTIZE), (source,), n.activation((1, 3), 0.01, 0)))
    data = load_regression(save(x=np.array([[0, 51, 255]], np.uint8)), graph)
    assert data.target.tolist() == [[0, 20, 100]]


REGRESSION_REFUSED = {
    "no y and another size": ({"x": SAMPLES}, r"x cannot be its own target: the model's input is \(3,\), its output \(2,\)"),
    "another shape": ({"x": SAMPLES, "y": SAMPLES}, r"y has samples of shape \(3,\), the model's output is \(2,\)"),
    "class numbers": ({"x": SAMPLES, "y": np.array([0, 1])}, "y is int64: float or int8 is expected"),
    "too few": ({"x": SAMPLES, "y": np.ones((1, 2))}, "has not as many targets"),
    "NaN": ({"x": SAMPLES, "y": np.full((2, 2), np.nan)}, r"y has 4 values that are NaN or infinite, the first at \(0, 0\)"),
    "no x": ({"y": np.ones((2, 2))}, "no array x, only y"),
}


@pytest.mark.parametrize("case", REGRESSION_REFUSED)
def test_targets_that_are_refused(save, case: str) -> None:
    arrays, text = REGRESSION_REFUSED[case]
    with pytest.raises(DataError, match=text) as caught:
        load_regression(save(**arrays), regression())
    assert caught.value.exit_code == 4 and caught.value.hint


def test_labels_of_binary_cross_entropy_are_0_and_1(save) -> None:
    data = load(save(x=SAMPLES, y=np.array([0, 2])), regression(outputs=1))
    with pytest.raises(DataError, match=r"sample 1 has label 2, the model has 2 classes \(0 to 1\)"):
        check_labels(data, 2)


def test_a_model_with_two_inputs_has_no_data_set(save) -> None:
    n = TinyNet()
    a, b = n.activation((1, 3)), n.activation((1, 3))
    graph = n.finish_all((a, b), (n.add(a, b),))
    for read in (load, load_regression):
        with pytest.raises(DataError, match=r"the model has 2 inputs \(t0, t1\)"):
            read(save(x=SAMPLES, y=Y), graph)


def test_a_float_model_is_to_be_quantized_first(save) -> None:
    n = TinyNet()
    source = n.float_tensor((1, 3))
    graph = n.finish(source, n.add_op(Unary(Function.TANH), (source,), n.float_tensor((1, 3))))
    with pytest.raises(DataError, match="the model computes in float: quantize it first"):
        load(save(x=SAMPLES, y=Y), graph)


def test_the_spoken_digits() -> None:
    graph = read_model(shared("models/mlperf_tiny/kws_ref_model_int8.tflite"))
    data = load(shared("datasets/fsdd_spoken_digits_mfcc_int8.npz"), graph)
    assert data.x.shape == (3000, 49, 10, 1)
    assert len(check_labels(data, 10)) == 3000
