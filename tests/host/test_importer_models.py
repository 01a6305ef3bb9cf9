"""Every real model beside the checkout either becomes a graph or is refused in words that say why. The table is the whole truth."""

from __future__ import annotations

import fnmatch
from pathlib import Path

import numpy as np
import pytest

from helpers.shared import SHARED
from mcugrad.errors import ModelError
from mcugrad.graph.edit import int8_share, is_float
from mcugrad.importer import read_model

MODELS = SHARED / "models"

pytestmark = pytest.mark.skipif(not MODELS.exists(), reason=f"{MODELS} is not there")

FLOAT = "float model (float32 activations, first seen at op "
HYBRID = "hybrid (dynamic range) model (float32 activations, int8 weights, first seen at op "
UINT8 = "uint8 model (the older asymmetric scheme, first seen at op 0 "
INT16 = "int16x8 model (int16 activations, first seen at op 0 "
LSTM = "UNIDIRECTIONAL_SEQUENCE_LSTM is not supported"
SIGNAL = "op 0 is the custom operator SignalWindow"
INT8 = ""

TABLE = {
    "coral/keras_lstm_mnist_ptq": f"op 1 {LSTM}",
    "coral/mobilenet_v1_*_quant": f"{UINT8}CONV_2D",
    "coral/split_concat": f"{UINT8}CONCATENATION",
    "emlearn/mnist_cnn_fp32": FLOAT,
    "emlearn/mnist_cnn_int8": INT8,
    "mlonmcu/bigsine_quant__bigsine_quant": INT8,
    "mlonmcu/catdog__CNN_model": FLOAT,
    "mlonmcu/cifar10__cifar10": FLOAT,
    "mlonmcu/layers__*": INT8,
    "mlonmcu/lstm2__lstm2": FLOAT,
    "mlonmcu/magic_wand__magic_wand": FLOAT,
    "mlonmcu/micro_kws_m_fp32__micro_kws_m_fp32": FLOAT,
    "mlonmcu/micro_speech__micro_speech": INT8,
    "mlonmcu/micro_speech_custom*": INT8,
    "mlonmcu/simple_mnist__MNIST_best_model": FLOAT,
    "mlonmcu/simple_mnist__MNIST_model_quantized": HYBRID,
    "mlonmcu/simple_mnist__model_data": FLOAT,
    "mlonmcu/sine_model__hello_world": INT8,
    "mlonmcu/sine_model__sine_model": FLOAT,
    "mlonmcu/umatest__umatest": FLOAT,
    "mlperf_tiny/ad01_fp32": FLOAT,
    "mlperf_tiny/ad01_int8": INT8,
    "mlperf_tiny/kws_ref_model_float32": f"{HYBRID}0 CONV_2D",
    "mlperf_tiny/kws_ref_model_int8": INT8,
    "mlperf_tiny/model_ToyCar_quant_fullint*": INT8,
    "mlperf_tiny/pretrainedResnet_float": FLOAT,
    "mlperf_tiny/pretrainedResnet_large_float": FLOAT,
    "mlperf_tiny/pretrainedResnet_large_int8": INT8,
    "mlperf_tiny/pretrainedResnet_quant_int8": INT8,
    "mlperf_tiny/str_ww_ref_model_int8": INT8,
    "mlperf_tiny/vww_96_float": FLOAT,
    "mlperf_tiny/vww_96_int8": INT8,
    "tflm/audio_preprocessor_*": SIGNAL,
    "tflm/dtln_noise_suppression": f"op 0 {LSTM}",
    "tflm/hello_world_float": FLOAT,
    "tflm/hello_world_int8": INT8,
    "tflm/keyword_scrambled*": "op 1 SVDF is not supported",
    "tflm/micro_speech_lstm": f"op 0 {LSTM}",
    "tflm/micro_speech_quantized": INT8,
    "tflm/person_detect*": INT8,
    "tflm/seanet_ops/add*": f"{INT16}ADD",
    "tflm/seanet_ops/conv*": f"{INT16}CONV_2D",
    "tflm/seanet_ops/leaky_relu*": f"{INT16}LEAKY_RELU",
    "tflm/seanet_ops/pad*": f"{INT16}PAD",
    "tflm/seanet_ops/quantize0": "the model's input, tensor 0 (), is int32",
    "tflm/seanet_ops/quantize1": "the model's input, tensor 0 (), is int16",
    "tflm/seanet_ops/strided_slice*": f"{INT16}STRIDED_SLICE",
    "tflm/seanet_ops/sub*": f"{INT16}SUB",
    "tflm/seanet_ops/transpose_conv*": "op 0 TRANSPOSE_CONV is not supported",
    "tflm/simple_add_model": INT8,
    "tflm/sine_float": FLOAT,
    "tflm/trained_lstm*": f"op 0 {LSTM}",
    "tiny_training/*_int8": INT8,
    "tinyengine/vww": INT8,
}
"""File -> "" where it becomes a graph, else what the refusal says. The first pattern that matches counts."""

CUTS = {
    "tflm/dtln_noise_suppression": "from tensor 'tfl.unidirectional_sequence_lstm1' (op 1) on is supported",
    "tflm/micro_speech_lstm": "from tensor 'tfl.unidirectional_sequence_lstm' (op 0) on is supported",
    "tflm/trained_lstm_int8": "from tensor 'tfl.unidirectional_sequence_lstm' (op 0) on is supported",
}

NOTES = {
    "tflm/person_detect": "bias scales name an axis that a bias does not have",
    "tiny_training/mcunet-5fps_int8": "52 biases are saturated at the end of int32",
    "tiny_training/proxyless-w0.3_int8": "22 biases are saturated at the end of int32",
}

STATELESS_FLOATS = 18


def _models() -> dict[str, Path]:
    return {str(p.relative_to(MODELS).with_suffix("")): p for p in sorted(MODELS.rglob("*.tflite"))}


def _existing(name: str) -> Path:
    path = MODELS / f"{name}.tflite"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    return path


def _expected(name: str) -> str:
    return next(text for pattern, text in TABLE.items() if fnmatch.fnmatchcase(name, pattern))


def test_every_file_has_a_row_and_every_row_a_file() -> None:
    names = _models()
    for name in names:
        _expected(name)
    assert [pattern for pattern in TABLE if not fnmatch.filter(names, pattern)] == []


def test_every_file_becomes_what_the_table_says() -> None:
    wrong = []
    for name, path in _models().items():
        expected = _expected(name)
        try:
            graph = read_model(path)
            outcome = "" if graph.ops and int8_share(graph) == 1 and not is_float(graph) else "an empty graph"
        except ModelError as error:
            outcome = error.text
            assert path.name in error.text and error.hint, path
        if (expected not in outcome) if expected else outcome:
            wrong.append((name, outcome))
    assert wrong == []


def test_every_float_file_can_be_read_to_be_quantized() -> None:
    read = 0
    for name, path in _models().items():
        if _expected(name).startswith(("float", "hybrid")):
            assert "mcugrad quantize MODEL --data calib.npz -o model.tflite" in _refusal(path).hint
            graph = read_model(path, allow_float=True)
            assert {t.dtype for t in graph.tensors} == {np.dtype(np.float32)}
            assert all(t.quant is None for t in graph.tensors)
            assert int8_share(graph) == 0 and is_float(graph)
            read += 1
    assert read == STATELESS_FLOATS


def _refusal(path: Path) -> ModelError:
    with pytest.raises(ModelError) as caught:
        read_model(path)
    return caught.value


@pytest.mark.parametrize("name", CUTS)
def test_where_a_model_can_be_cut(name: str) -> None:
    assert CUTS[name] in _refusal(_existing(name)).hint


@pytest.mark.parametrize("name", NOTES)
def test_what_is_odd_is_noted(name: str) -> None:
    assert any(NOTES[name] in note for note in read_model(_existing(name)).notes)
