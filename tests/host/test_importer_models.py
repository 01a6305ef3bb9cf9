"""Every real model beside the checkout either becomes a graph or is refused in words that say why."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.shared import SHARED
from mcugrad.errors import ModelError
from mcugrad.importer import read_model

MODELS = SHARED / "models"

pytestmark = pytest.mark.skipif(not MODELS.exists(), reason=f"{MODELS} is not there")

REFUSED = {
    "coral/mobilenet_v1_0.25_128_quant": "uint8 model (the older asymmetric scheme, first seen at op 0 CONV_2D)",
    "coral/keras_lstm_mnist_ptq": "op 1 UNIDIRECTIONAL_SEQUENCE_LSTM is not supported",
    "mlperf_tiny/kws_ref_model_float32": "hybrid (dynamic range) model (float32 activations, int8 weights, first seen at op 0 CONV_2D)",
    "mlonmcu/simple_mnist__MNIST_model_quantized": "hybrid (dynamic range) model (float32 activations, int8 weights",
    "mlperf_tiny/vww_96_float": "float model (float32 activations, first seen at op 0 CONV_2D)",
    "tflm/audio_preprocessor_int8": "op 0 is the custom operator SignalWindow",
    "tflm/seanet_ops/conv0": "int16x8 model (int16 activations, first seen at op 0 CONV_2D)",
    "tflm/seanet_ops/add0": "int16x8 model (int16 activations, first seen at op 0 ADD)",
    "tflm/simple_add_model": "the model has 2 inputs",
    "tflm/keyword_scrambled": "SVDF is not supported",
    "tinyengine/vww": "op 58 TRANSPOSE is not supported",
}

NOTES = {
    "tflm/person_detect": "bias scales name an axis that a bias does not have",
    "tiny_training/mcunet-5fps_int8": "52 biases are saturated at the end of int32",
    "tiny_training/proxyless-w0.3_int8": "22 biases are saturated at the end of int32",
}


def _models() -> list[Path]:
    return sorted(MODELS.rglob("*.tflite"))


def test_every_file_gives_a_graph_or_a_model_error() -> None:
    accepted = 0
    for path in _models():
        try:
            accepted += bool(read_model(path).ops)
        except ModelError as error:
            assert path.name in error.text and error.hint, path
    assert accepted >= 89


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_named(name: str) -> None:
    path = MODELS / f"{name}.tflite"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    with pytest.raises(ModelError) as caught:
        read_model(path)
    assert REFUSED[name] in caught.value.text


@pytest.mark.parametrize("name", NOTES)
def test_what_is_odd_is_noted(name: str) -> None:
    path = MODELS / f"{name}.tflite"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    assert any(NOTES[name] in note for note in read_model(path).notes)
