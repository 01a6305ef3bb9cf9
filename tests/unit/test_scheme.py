"""The words of --train and the JSON file: what they mean, and what each mistake is told."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.graphs import GraphBuilder, chain
from mcugrad.autodiff.scheme import Scheme, parse_scheme, trained_channels
from mcugrad.errors import UsageError
from mcugrad.graph import Graph

GRAPH = chain(0)
"""Layers: conv_0, dwconv_0, conv_1, dwconv_1, linear_0."""

NAMES = [op.name for op in GRAPH.layers]


def test_layers_of_the_graph_below() -> None:
    assert NAMES == ["conv_0", "dwconv_0", "conv_1", "dwconv_1", "linear_0"]


@pytest.mark.parametrize(
    "text, weights, biases",
    [
        ("head", {4: 1.0}, {4}),
        ("all", dict.fromkeys(range(5), 1.0), {0, 1, 2, 3, 4}),
        ("bias:1", {}, {4}),
        ("bias:5", {}, {0, 1, 2, 3, 4}),
        ("bias:conv_1", {}, {2}),
        ("weights:conv_1", {2: 1.0}, set()),
        ("weights:2", {2: 1.0}, set()),
        ("weights:0:1/8", {0: 0.125}, set()),
        ("weights:conv_0:0.25", {0: 0.25}, set()),
        ("weights:conv_0:1", {0: 1.0}, set()),
        ("weights:conv_0:", {0: 1.0}, set()),
        ("head,bias:3", {4: 1.0}, {2, 3, 4}),
        (" head , bias:2 ,weights:dwconv_0:1/2", {4: 1.0, 1: 0.5}, {3, 4}),
        ("all,weights:conv_0:1/4", {0: 0.25, 1: 1.0, 2: 1.0, 3: 1.0, 4: 1.0}, {0, 1, 2, 3, 4}),
        ("bias:2,bias:conv_0", {}, {0, 3, 4}),
    ],
)
def test_words(text: str, weights: dict[int, float], biases: set[int]) -> None:
    scheme = parse_scheme(text, GRAPH)
    assert dict(scheme.weights) == weights and scheme.biases == biases
    assert scheme.layers == set(weights) | biases


def test_a_layer_is_also_known_by_its_tensors() -> None:
    tensors = tuple(replace(t, name=f"model/{k};x/{t.name}") for k, t in enumerate(GRAPH.tensors))
    graph = replace(GRAPH, tensors=tensors)
    op = graph.layers[2]
    for tensor in (op.outputs[0], op.inputs[1]):
        assert parse_scheme(f"weights:{tensors[tensor].name}:1/2", graph).weights == {2: 0.5}


def test_a_name_with_a_colon() -> None:
    """TensorFlow's output tensors are called StatefulPartitionedCall:0: that 0 is no ratio."""
    tensors = list(GRAPH.tensors)
    y = GRAPH.layers[4].outputs[0]
    tensors[y] = replace(tensors[y], name="StatefulPartitionedCall:0")
    graph = replace(GRAPH, tensors=tuple(tensors))
    assert parse_scheme("weights:StatefulPartitionedCall:0", graph).weights == {4: 1.0}
    assert parse_scheme("weights:StatefulPartitionedCall:0:1/4", graph).weights == {4: 0.25}
    assert parse_scheme("bias:StatefulPartitionedCall:0", graph).biases == {4}


@pytest.mark.parametrize(
    "text, say",
    [
        ("", "'' is not understood"),
        ("heads", "'heads' is not understood"),
        ("head,", "'' is not understood"),
        ("head:1", "'head:1' is not understood"),
        ("all:2", "'all:2' is not understood"),
        ("bias", "'bias' is not understood"),
        ("bias:", "'bias:' is not understood"),
        ("weights", "'weights' is not understood"),
        ("weights:", "'weights:' is not understood"),
        ("bias:0", "has 5 layers: bias:1 to bias:5"),
        ("bias:6", "has 5 layers: bias:1 to bias:5"),
        ("bias:99999999999999999999", "has 5 layers"),
        ("weights:5", "has layers 0 to 4"),
        ("weights:conv_0:0", "ratio '0' is not in"),
        ("weights:conv_0:-1", "ratio '-1' is not in"),
        ("weights:conv_0:1.5", "ratio '1.5' is not in"),
        ("weights:conv_0:9/8", "ratio '9/8' is not in"),
        ("weights:conv_0:1/0", "ratio '1/0' is not in"),
        ("weights:conv_0:nan", "ratio 'nan' is not in"),
        ("weights:conv_0:inf", "ratio 'inf' is not in"),
        ("weights:conv_0:half", "ratio 'half' is not in"),
        ("weights:conv_0:1/2/3", "ratio '1/2/3' is not in"),
        ("weights:conv_O", "no layer 'conv_O': nearest: conv_"),
        ("weights:linear", "no layer 'linear': nearest: linear_0"),
        ("bias:dwconv0", "no layer 'dwconv0': nearest: dwconv_0"),
        ("weights:zzz", "no layer 'zzz': nearest: conv_0, dwconv_0, conv_1, dwconv_1, linear_0"),
        ("nothing.json", "nothing.json: No such file"),
    ],
)
def test_mistakes(text: str, say: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_scheme(text, GRAPH)
    assert say in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


@given(st.text(alphabet="headbisw:,/.0123456789_conv all-jsn\x00é²", max_size=30))
def test_any_text_is_a_scheme_or_a_usage_error(text: str) -> None:
    try:
        scheme = parse_scheme(text, GRAPH)
    except UsageError:
        return
    assert scheme.layers <= set(range(5)) and all(0 < share <= 1 for share in scheme.weights.values())


# ---- JSON ---------------------------------------------------------------------------------------------------------------


def from_json(tmp_path: Path, value: object, graph: Graph = GRAPH) -> Scheme:
    path = tmp_path / "scheme.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    return parse_scheme(str(path), graph)


def test_a_json_file(tmp_path: Path) -> None:
    value = {"head": True, "bias": 2, "weights": {"conv_1": 0.5, "0": 1}}
    assert from_json(tmp_path, value) == parse_scheme("head,bias:2,weights:conv_1:1/2,weights:0", GRAPH)
    assert from_json(tmp_path, {"bias": 3}) == parse_scheme("bias:3", GRAPH)
    assert from_json(tmp_path, {"head": False, "weights": {"conv_0": 0.25}}) == parse_scheme("weights:conv_0:1/4", GRAPH)


@pytest.mark.parametrize(
    "value, say",
    [
        ("{", "is not JSON"),
        ("", "is not JSON"),
        ([1], "expected an object"),
        ("null", "expected an object"),
        ({"heads": True}, "expected an object"),
        ({"weights": ["conv_0"]}, "expected an object"),
        ({"head": "no"}, "head is 'no'"),
        ({"bias": True}, "bias is True"),
        ({"bias": 2.5}, "bias is 2.5"),
        ({"bias": [1]}, "bias is [1]"),
        ({"weights": {"conv_0": "all"}}, "weights of conv_0 is 'all'"),
        ({"weights": {"conv_0": True}}, "weights of conv_0 is True"),
        ({"weights": {"conv_0": 2}}, "ratio '2' is not in"),
        ({"weights": {"conv_9": 1}}, "no layer 'conv_9'"),
        ({"bias": 9}, "has 5 layers"),
        ({}, "trains nothing"),
        ({"head": False, "bias": 0}, "trains nothing"),
    ],
)
def test_mistakes_in_a_json_file(tmp_path: Path, value: object, say: str) -> None:
    with pytest.raises(UsageError) as caught:
        from_json(tmp_path, value)
    assert say in str(caught.value)


def test_a_json_file_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "scheme.json"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="is not JSON"):
        parse_scheme(str(path), GRAPH)
    with pytest.raises(UsageError, match=r"Is a directory"):
        (tmp_path / "folder.json").mkdir()
        parse_scheme(str(tmp_path / "folder.json"), GRAPH)


def test_a_json_name_may_hold_commas_and_colons(tmp_path: Path) -> None:
    tensors = list(GRAPH.tensors)
    w = GRAPH.layers[1].inputs[1]
    tensors[w] = replace(tensors[w], name="model/a,b:0")
    graph = replace(GRAPH, tensors=tuple(tensors))
    assert from_json(tmp_path, {"weights": {"model/a,b:0": 0.5}}, graph).weights == {1: 0.5}


# ---- the way back -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["head", "all", "bias:3", "weights:conv_0:1/8,bias:2", "weights:conv_1:0.3,head"])
def test_a_description_says_the_same_scheme(text: str) -> None:
    scheme = parse_scheme(text, GRAPH)
    assert parse_scheme(scheme.describe(GRAPH), GRAPH) == scheme


def test_channels_of_a_share() -> None:
    b = GraphBuilder((1, 4, 4, 6), 1)
    graph = b.finish(b.linear(b.mean(b.dwconv(b.input, 2)), 3))
    dw, head = graph.layers
    assert [trained_channels(graph, dw, s) for s in (1.0, 0.5, 0.25, 0.01)] == [12, 6, 3, 1]
    assert [trained_channels(graph, head, s) for s in (1.0, 0.5, 1 / 12)] == [12, 6, 1]
