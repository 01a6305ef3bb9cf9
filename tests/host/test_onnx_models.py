"""The ONNX files beside the checkout: what is standard becomes a graph and computes what onnxruntime computes, what is not is named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from helpers.onnx_builder import as_stored, run_int8, run_onnxruntime
from helpers.shared import SHARED, shared
from mcugrad.errors import ModelError
from mcugrad.graph import Graph
from mcugrad.graph.edit import output_of, replace_head
from mcugrad.importer import read_model
from mcugrad.quantize import run_float

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

REFUSED = {
    "deeploy__MLPerf_ImageClassification__network": "node 1 RequantShift 'RequantShift_16' is not supported",
    "deeploy__MLPerf_KeywordSpotting__network": "node 1 RequantShift 'RequantShift_17' is not supported",
    "deeploy__miniMobileNet__network": "node 1 RequantShift 'RequantShift_1' is not supported",
    "deeploy__miniMobileNetv2__network": "node 1 RequantShift 'RequantShift_1' is not supported",
    "deeploy__Transformer_Train__network": "node 6 LayerNormalization",
    "mlonmcu__onnx_mnist": "the model uses ONNX opset 1, mcugrad reads 11 to 21",
    "mlonmcu__toycar": "has int8 weights without a scale",
}
QUANTIZED = ["mlonmcu__micro_kws_m_static_qdq", "mlonmcu__micro_kws_m_static_qoperator"]
FLOAT = ["mlonmcu__micro_kws_m_static_fp32", "mlonmcu__micro_kws_m_static_quantized_dequant"]


def path(name: str) -> Path:
    return shared(f"models/onnx/{name}.onnx")


def test_every_file_is_in_one_of_the_tables() -> None:
    if not (SHARED / "models/onnx").exists():
        pytest.skip("the models are not there")
    assert {p.stem for p in (SHARED / "models/onnx").glob("*.onnx")} == {*REFUSED, *QUANTIZED, *FLOAT}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_standard_is_named(name: str) -> None:
    with pytest.raises(ModelError) as caught:
        read_model(path(name))
    assert REFUSED[name] in caught.value.text and caught.value.hint


@pytest.mark.parametrize("name", FLOAT)
def test_a_float_model_computes_what_onnxruntime_computes(name: str) -> None:
    with pytest.raises(ModelError, match="float model"):
        read_model(path(name))
    graph = read_model(path(name), allow_float=True)
    rng = np.random.default_rng(0)
    is_int8 = name.endswith("dequant")
    x = rng.integers(-128, 128, (1, 1960)).astype(np.int8) if is_int8 else rng.normal(0, 2, (1, 1960)).astype(np.float32)
    given = next(iter(run_onnxruntime(path(name).read_bytes(), {"serving_default_input:0": x}).values())).astype(np.float64)
    found = run_float(graph, [x])[graph.output]
    assert np.abs(found - ((given + 128) / 256 if is_int8 else given)).max() < (0.51 / 256 if is_int8 else 1e-5)


def test_a_quantized_model_takes_a_new_head() -> None:
    assert output_of(replace_head(read_model(path(QUANTIZED[0])), 4)).shape == (1, 4)


def observed(name: str) -> list[str]:
    """The quantized values of a file."""
    nodes = onnx.load(path(name)).graph.node
    return [o for n in nodes for o in n.output if n.op_type.startswith("QLinear") or n.op_type == "QuantizeLinear"]


@pytest.mark.parametrize("name", QUANTIZED)
def test_a_quantized_model_computes_what_onnxruntime_computes_layer_by_layer(name: str) -> None:
    graph, data = read_model(path(name)), path(name).read_bytes()
    assert graph.notes[0].startswith("a constant added behind the last layer became its bias")
    rng = np.random.default_rng(0)
    worst: dict[str, int] = {}
    unequal, total = 0, 0
    for _ in range(5):
        x = rng.normal(0, 2, (1, 1960)).astype(np.float32)
        given = run_onnxruntime(data, {"serving_default_input:0": x}, observed(name))
        _, computed = run_int8(graph, [x], given)
        for key, value in computed.items():
            if value.dtype == np.int8:
                d = np.abs(value.astype(int) - _stored(graph, key, given[key]))
                worst[key] = max(worst.get(key, 0), int(d.max()))
                unequal, total = unequal + int((d > 0).sum()), total + d.size
        end = run_int8(graph, [x])[0][graph.output]
        assert np.abs(end - given["StatefulPartitionedCall:0"]).max() <= 2.5 / 256
    assert len(worst) == 12
    assert max(worst.values()) <= 1
    assert unequal / total < 0.005


def _stored(graph: Graph, name: str, value: npt.NDArray[np.int8]) -> npt.NDArray[np.int64]:
    t = next(t for t in graph.tensors if t.name == name)
    return as_stored(value, t.shape).astype(np.int64)
