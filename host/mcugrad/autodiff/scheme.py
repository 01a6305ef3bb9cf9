"""What is trained: the sparse-update scheme, from the words of --train or from a JSON file."""

from __future__ import annotations

import difflib
import functools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mcugrad.errors import UsageError
from mcugrad.graph import Graph, Op

GRAMMAR = "head | bias:K | bias:NAME | weights:NAME[:RATIO] | all, joined by commas"


@dataclass(frozen=True, slots=True)
class Scheme:
    """``weights``: layer number -> share of its input channels that is trained (0 < share ≤ 1). ``biases``: layer numbers."""

    weights: Mapping[int, float]
    biases: frozenset[int]

    @property
    def layers(self) -> frozenset[int]:
        """Numbers of all layers that are trained in part."""
        return frozenset(self.weights) | self.biases

    def slices(self, graph: Graph) -> dict[int, int]:
        """Layer number -> how many of its channels are trained, of the layers whose weights are trained in part."""
        counts = {k: trained_channels(graph, graph.layers[k], share) for k, share in self.weights.items()}
        return {k: n for k, n in counts.items() if n < graph.tensors[graph.layers[k].inputs[1]].shape[-1]}

    def describe(self, graph: Graph) -> str:
        """The scheme in the words of --train, with every layer by name."""
        names = [op.name for op in graph.layers]
        words = [f"weights:{names[k]}" + (f":{share!r}" if share < 1 else "") for k, share in sorted(self.weights.items())]
        return ",".join(words + [f"bias:{names[k]}" for k in sorted(self.biases)])


def parse_scheme(text: str, graph: Graph) -> Scheme:
    """Read ``--train``: words as in GRAMMAR, or the path of a JSON file {"head": bool, "bias": K, "weights": {name: ratio}}.

    Raises UsageError that names the word and, for a misspelt layer, the nearest names.
    """
    if text.endswith(".json"):
        return _from_json(Path(text), graph)
    scheme = Scheme({}, frozenset())
    for word in (w.strip() for w in text.split(",")):
        scheme = _add(scheme, word, graph)
    return scheme


def _from_json(path: Path, graph: Graph) -> Scheme:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise UsageError(f"scheme file {path}: {e.strerror}") from None
    except ValueError as e:
        raise UsageError(f"scheme file {path} is not JSON: {e}") from None
    if not isinstance(raw, dict) or set(raw) - {"head", "bias", "weights"} or not isinstance(raw.get("weights", {}), dict):
        hint = 'e.g. {"head": true, "bias": 4, "weights": {"conv_3": 0.5}}'
        raise UsageError(f"scheme file {path}: expected an object with head, bias and weights", hint)
    head, bias = _member(path, raw, "head", bool), _member(path, raw, "bias", int)
    words = (["head"] if head else []) + ([f"bias:{bias}"] if bias else [])
    for name, ratio in raw.get("weights", {}).items():
        if not isinstance(ratio, int | float) or isinstance(ratio, bool):
            raise UsageError(
                f"scheme file {path}: weights of {name} is {ratio!r}", "a number above 0, at most 1: the share that is trained"
            )
        words.append(f"weights:{name}:{ratio!r}")
    if not words:
        raise UsageError(f"scheme file {path} trains nothing", "set head, bias or weights")
    return functools.reduce(lambda scheme, word: _add(scheme, word, graph), words, Scheme({}, frozenset()))


def _member(path: Path, raw: Mapping[str, object], name: str, kind: type) -> object:
    value = raw.get(name, kind())
    if type(value) is not kind:
        raise UsageError(
            f"scheme file {path}: {name} is {value!r}", f"{name} is {'true or false' if kind is bool else 'a number of layers'}"
        )
    return value


def _add(scheme: Scheme, word: str, graph: Graph) -> Scheme:
    layers = graph.layers
    last = len(layers) - 1
    what, _, rest = word.partition(":")
    if what == "head" and not rest:
        return Scheme({**scheme.weights, last: 1.0}, scheme.biases | {last})
    if what == "all" and not rest:
        return Scheme(dict.fromkeys(range(len(layers)), 1.0), frozenset(range(len(layers))))
    if what == "bias" and rest:
        if rest.isdecimal():
            count = int(rest)
            if not 1 <= count <= len(layers):
                raise UsageError(f"--train {word}: the model has {len(layers)} layers", f"bias:1 to bias:{len(layers)}")
            return Scheme(scheme.weights, scheme.biases | set(range(len(layers) - count, len(layers))))
        return Scheme(scheme.weights, scheme.biases | {_find(rest, word, graph)})
    if what == "weights" and rest:
        name, ratio = _split_ratio(rest, graph)
        k = _find(name, word, graph)
        return Scheme({**scheme.weights, k: _ratio(ratio, word)}, scheme.biases)
    raise UsageError(f"--train {word!r} is not understood", GRAMMAR)


def _ratio(text: str, word: str) -> float:
    if not text:
        return 1.0
    try:
        top, _, bottom = text.partition("/")
        ratio = float(top) / float(bottom or "1")
    except (ValueError, ZeroDivisionError):
        ratio = -1.0
    if not 0 < ratio <= 1 or math.isnan(ratio):
        raise UsageError(f"--train {word}: ratio {text!r} is not in (0, 1]", "e.g. 1/4 or 0.25")
    return ratio


def _split_ratio(text: str, graph: Graph) -> tuple[str, str]:
    """NAME[:RATIO]. The names of tensors may have colons, so that a name is looked for first."""
    name, colon, ratio = text.rpartition(":")
    return (text, "") if not colon or _named(text, graph) is not None else (name, ratio)


def _named(name: str, graph: Graph) -> int | None:
    """The layer whose op, output or weights have that name."""
    for k, op in enumerate(graph.layers):
        if name in (op.name, graph.tensors[op.outputs[0]].name, graph.tensors[op.inputs[1]].name):
            return k
    return None


def _find(name: str, word: str, graph: Graph) -> int:
    layers = graph.layers
    if name.isdecimal():
        if int(name) < len(layers):
            return int(name)
        raise UsageError(f"--train {word}: the model has layers 0 to {len(layers) - 1}")
    found = _named(name, graph)
    if found is not None:
        return found
    names = [op.name for op in layers]
    near = difflib.get_close_matches(name, names, n=3) or names
    raise UsageError(f"--train {word}: the model has no layer {name!r}", f"nearest: {', '.join(near)}")


def trained_channels(graph: Graph, op: Op, share: float) -> int:
    """How many leading channels of ``op`` a share trains: input channels, or channels of a depthwise layer. At least 1."""
    shape = graph.tensors[op.inputs[1]].shape
    return max(1, round(share * shape[-1]))
