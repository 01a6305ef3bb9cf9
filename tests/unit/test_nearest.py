"""What fits in place of what does not: schemes in words that can be pasted, ever smaller, and the first of them that fits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.graphs import GRAPHS
from mcugrad.autodiff.scheme import Scheme, parse_scheme
from mcugrad.board import find_board
from mcugrad.graph.normalize import normalize
from mcugrad.graph.permute import Channels
from mcugrad.lower import Options
from mcugrad.nearest import Request, Smaller, nearest, smaller, words
from mcugrad.paths import root
from mcugrad.pipeline import Compiled, compile_model
from mcugrad.plan import Region
from mcugrad.report import PlanReport, report

WATCH = root() / "examples" / "watch" / "watch_base.tflite"
GRAPH = normalize(GRAPHS["double_residual"](1))
LAYERS = range(len(GRAPH.layers))

SCHEMES = st.builds(
    Scheme,
    st.dictionaries(st.sampled_from(LAYERS), st.sampled_from([1.0, 0.5, 0.25, 0.125, 0.3, 1 / 3])),
    st.frozensets(st.sampled_from(LAYERS)),
).filter(lambda s: bool(s.layers))


@given(SCHEMES)
@settings(max_examples=200, deadline=None)
def test_words_mean_the_scheme(scheme: Scheme) -> None:
    assert parse_scheme(words(GRAPH, scheme), GRAPH) == scheme


def test_words_are_few() -> None:
    assert words(GRAPH, parse_scheme("all", GRAPH)).startswith(f"head,bias:{len(LAYERS)},weights:")
    for text in ("head", "bias:1", "bias:3", "head,bias:3", "head,bias:2,weights:conv_0:1/4"):
        assert words(GRAPH, parse_scheme(text, GRAPH)) == text


@given(SCHEMES, st.sampled_from([Options(), Options(ws=1), Options(batch=4)]))
@settings(max_examples=100, deadline=None)
def test_schemes_get_smaller_and_never_train_what_was_not_asked_for(scheme: Scheme, options: Options) -> None:
    before, ws = scheme, options.ws
    for step in smaller(GRAPH, scheme, options):
        now = parse_scheme(step.words, GRAPH)
        assert now.layers and now.biases <= before.biases and set(now.weights) <= set(before.weights)
        assert all(share <= before.weights[k] for k, share in now.weights.items())
        assert step.ws <= ws and (now != before or step.ws < ws)
        assert step.ws == 2 or options.batch == 1
        before, ws = now, step.ws
    assert len(before.layers) == 1 or before == scheme


def total(compiled: Compiled, r: PlanReport) -> int:
    sizes = compiled.layout.sizes
    return sizes[Region.ARENA] + sizes[Region.STATE] + sizes[Region.IO] + r.ram.stack + r.ram.runtime


@pytest.fixture(scope="module")
def wanted() -> tuple[Request, Compiled, PlanReport]:
    request = Request(WATCH, "head,bias:4,weights:conv_3,weights:conv_4", None, Options(), None, Channels.FIRST)
    compiled = request.compile()
    return request, compiled, report(compiled, find_board("host"))


@pytest.fixture(scope="module")
def needs(wanted: tuple[Request, Compiled, PlanReport]) -> dict[Smaller, int]:
    """What each smaller scheme needs."""
    request, compiled, r = wanted
    steps = smaller(compiled.train.graph, compiled.train.scheme, request.options)
    return {s: total(compile_model(WATCH, s.words, None, Options(ws=s.ws)), r) for s in steps}


@pytest.mark.parametrize("missing", [16, 1000, 2600])
def test_the_one_that_is_named_fits_and_the_one_before_does_not(
    wanted: tuple[Request, Compiled, PlanReport], needs: dict[Smaller, int], missing: int
) -> None:
    request, compiled, r = wanted
    limit = r.ram.total - missing
    hint = nearest(request, compiled, replace(r, sram=limit, ram_limit=limit))
    steps = list(needs)
    (named,) = (k for k, s in enumerate(steps) if f"nearest is {s} with {needs[s]:,} bytes" in hint)
    assert needs[steps[named]] <= limit and (named == 0 or needs[steps[named - 1]] > limit)


def test_none_that_fits(wanted: tuple[Request, Compiled, PlanReport]) -> None:
    request, compiled, r = wanted
    hint = nearest(request, compiled, replace(r, sram=1, ram_limit=1))
    assert "no smaller scheme fits, even --train head --rounding stochastic needs " in hint


def test_the_least_of_all_has_nothing_smaller() -> None:
    request = Request(WATCH, "bias:1", None, Options(), None, Channels.FIRST)
    compiled = request.compile()
    r = report(compiled, find_board("host"))
    assert "no smaller scheme fits, even --train bias:1; " in nearest(request, compiled, replace(r, sram=1, ram_limit=1))


def test_a_request_compiles_what_it_says() -> None:
    request = Request(Path(WATCH), "head", 3, Options(ws=1), None, Channels.FIRST)
    assert request.compile().program.classes == 3 and request.compile(5000).ram == 5000
