"""Contributions: Fisher scores by what a step moves and by construction, slices and their costs, short runs, what is kept and resumed."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.graphs import GraphBuilder, chain, mixed, random_samples, residual, rows, shuffle
from helpers.kinds import with_op
from mcugrad.autodiff import Loss, parse_scheme
from mcugrad.board import find_board
from mcugrad.data import DataSet
from mcugrad.errors import DataError, FitError, UsageError
from mcugrad.graph import Activation, Graph
from mcugrad.graph.permute import Channels
from mcugrad.lower.weights import read_layer
from mcugrad.pipeline import Compiled, compile_graph
from mcugrad.plan import Region
from mcugrad.ref import Machine
from mcugrad.search import Budget, By, Case, Outcome, Settings, Tools, run, scores, search
from mcugrad.search.candidates import Candidates, Choice, find_candidates
from mcugrad.search.engine import InProcess
from mcugrad.search.store import open_store

SAMPLES = 6
FISHER = Settings(By.FISHER, SAMPLES, 20, 0.05, 1, 2, None)


def data_of(graph: Graph, count: int, classes: int, seed: int = 1) -> DataSet:
    x = np.stack(random_samples(graph, count, seed))
    return DataSet(x, np.arange(count) % classes, ())


def contributions(graph: Graph, settings: Settings = FISHER, classes: int = 3) -> tuple[Candidates, scores.Contributions]:
    candidates = find_candidates(compile_graph(graph, "head").train.graph)
    data = data_of(graph, 20, classes)
    job = scores.fisher_job(graph, candidates, data, settings, fresh_head=False)
    found = [scores.fisher_of_sample(job, task) for task in scores.fisher_tasks(data, settings)]
    return candidates, scores.fisher_contributions(candidates, found, settings.by)


# ---- candidates -------------------------------------------------------------------------------------------------------


def all_choices(candidates: Candidates) -> Iterator[Choice]:
    """Every single option, and everything at once."""
    yield from scores.single_choices(candidates)
    yield tuple(n - 1 for n in candidates.options)


@pytest.mark.parametrize("build", [chain, residual, mixed, rows, shuffle])
def test_a_choice_in_words_and_in_a_file_is_the_same_scheme(build: Callable[[], Graph], tmp_path: Path) -> None:
    graph = compile_graph(build(), "head").train.graph
    candidates = find_candidates(graph)
    for choice in all_choices(candidates):
        scheme = parse_scheme(candidates.words(choice), graph)
        path = tmp_path / "scheme.json"
        path.write_text(json.dumps(candidates.as_json(choice)))
        assert parse_scheme(str(path), graph) == scheme
        last = len(graph.layers) - 1
        assert scheme.biases == frozenset(range(last - choice[0], last + 1))
        levels = {k: candidates.layers[k].levels[o - 1].ratio for k, o in enumerate(choice[1:]) if o}
        assert scheme.weights == {**levels, last: 1.0}


@pytest.mark.parametrize("ws, build", [(1, chain), (2, mixed), (1, rows)])
def test_trained_bytes_are_those_that_state_grows_by(ws: int, build: Callable[[], Graph]) -> None:
    candidates = find_candidates(compile_graph(build(), "head").train.graph)
    options = dataclasses.replace(FISHER, ws=ws).options
    sizes = candidates.trained_bytes(ws)
    assert tuple(map(len, sizes)) == candidates.options

    def trained(choice: Choice) -> int:
        program = compile_graph(build(), candidates.words(choice), options).program
        return sum(v.nbytes for t in program.trained for v in (t.weights, t.bias) if v is not None)

    head = trained(candidates.none)
    for choice in all_choices(candidates):
        assert trained(choice) - head == sum(s[o] for s, o in zip(sizes, choice, strict=True)), candidates.words(choice)


def test_ratios_that_train_the_same_channels_are_one_level() -> None:
    b = GraphBuilder((1, 6, 6, 3))
    graph = b.finish(b.linear(b.mean(b.conv(b.conv(b.input, 16), 8)), 3))
    first, second, head = find_candidates(graph).layers
    assert [(v.ratio, v.channels) for v in first.levels] == [(1 / 4, 1), (1 / 2, 2), (1.0, 3)]
    assert [(v.ratio, v.channels) for v in second.levels] == [(1 / 8, 2), (1 / 4, 4), (1 / 2, 8), (1.0, 16)]
    assert head.levels == ()
    assert second.levels[1].parameters == 8 * 9 * 4 and second.levels[1].saved_bytes == 36 * 4
    assert second.levels[1].macs == 36 * 8 * 9 * 4


# ---- Fisher -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("build", [chain, residual, mixed, rows])
def test_fisher_scores_are_what_one_small_step_would_move(build: Callable[[], Graph]) -> None:
    """SGD in real units moves w by -lr · g: the squared moves of a step, by lr², are the score of that sample. Some weights saturate."""
    graph, lr = build(), 0.05
    candidates = find_candidates(compile_graph(graph, "head").train.graph)
    data = data_of(graph, 8, 3)
    job = scores.fisher_job(graph, candidates, data, FISHER, fresh_head=False)
    task = scores.fisher_tasks(data, FISHER)[0]
    found = scores.fisher_of_sample(job, task)
    compiled = compile_graph(graph, candidates.words(tuple(n - 1 for n in candidates.options)), FISHER.options)
    machine = Machine(job.plan)
    machine.state = job.state
    machine.train(task[0], task[1][0], lr, 0.0)
    for t in compiled.program.trained[:-1]:
        layer = read_layer(compiled.train.graph, compiled.train.graph.layers[t.layer])
        for value, dtype, what in ((t.weights, "<i2", "weights"), (t.bias, "<i4", "biases")):
            if value is None:
                continue
            at = compiled.layout.offsets[value]
            old, new = (np.frombuffer(s[at : at + value.nbytes], dtype).astype(np.float64) for s in (job.state, machine.state))
            lsb = layer.w_scale / 256 if what == "weights" else layer.x_scale * layer.w_scale / 2**t.bf
            moved = (new - old).reshape(len(layer.w_scale), -1) * lsb[:, None] / lr
            assert found[what][t.layer][-1] == pytest.approx((moved**2).sum(), rel=0.3), (t.name, what)


def dead_inputs(live: int) -> Graph:
    """A convolution of 8 input channels, of which only the first ``live`` are not 0 everywhere; a second convolution behind it."""
    b = GraphBuilder((1, 6, 6, 3), 4)
    y = b.conv(b.input, 8)
    graph = b.finish(b.linear(b.mean(b.conv(y, 8, activation=Activation.RELU)), 3))
    tensors = list(graph.tensors)
    first = graph.layers[0]
    for k in first.inputs[1:]:
        data = np.array(tensors[k].data)
        data[live:] = 0
        tensors[k] = dataclasses.replace(tensors[k], data=data)
    return dataclasses.replace(graph, tensors=tuple(tensors))


@pytest.mark.parametrize("live", [1, 2, 4])
def test_channels_that_are_always_zero_contribute_nothing(live: int) -> None:
    """The gradient of a weight is error times input: from the last live channel on, more channels add nothing."""
    candidates, found = contributions(dead_inputs(live))
    for level, value in zip(candidates.layers[1].levels, found.values[2][1:], strict=True):
        assert (value < found.values[2][-1]) == (level.channels < live)


def test_larger_gradients_score_higher() -> None:
    """Two nets, equal but for the first layer, whose weights and biases are a tenth in the second: so is what the second layer reads."""
    graph = dead_inputs(8)
    tensors = list(graph.tensors)
    for k in graph.layers[0].inputs[1:]:
        tensors[k] = dataclasses.replace(tensors[k], data=(np.asarray(tensors[k].data) / 10).astype(tensors[k].dtype))
    small = contributions(dataclasses.replace(graph, tensors=tuple(tensors)))[1].values[2]
    large = contributions(graph)[1].values[2]
    assert all(a > 5 * b > 0 for a, b in zip(large[1:], small[1:], strict=True))


def test_scores_of_the_channels_with_the_largest_weights() -> None:
    """--channels norm: the second layer's largest weights belong to the live channel, which stands last in the model."""
    graph = dead_inputs(8)
    tensors = list(graph.tensors)
    keep = np.zeros(8, bool)
    keep[7] = True
    for k in graph.layers[0].inputs[1:]:
        data = np.array(tensors[k].data)
        data[~keep] = 0
        tensors[k] = dataclasses.replace(tensors[k], data=data)
    w = graph.layers[1].inputs[1]
    data = np.array(tensors[w].data) // 4
    data[..., 7] = 120
    tensors[w] = dataclasses.replace(tensors[w], data=data)
    graph = dataclasses.replace(graph, tensors=tuple(tensors))
    first = contributions(graph)[1].values[2]
    norm = contributions(graph, dataclasses.replace(FISHER, channels=Channels.NORM))[1].values[2]
    assert first[1] == 0.0 < norm[1] == pytest.approx(first[-1]) == pytest.approx(norm[-1])


@pytest.mark.parametrize("build", [chain, residual, mixed, rows])
def test_more_is_never_worth_less(build: Callable[[], Graph]) -> None:
    candidates, found = contributions(build())
    for values, count in zip(found.values, candidates.options, strict=True):
        assert len(values) == count and values[0] == 0.0 and all(a <= b for a, b in itertools.pairwise(values))
    assert any(v[-1] > 0 for v in found.values)


def test_tinytrain_divides_by_parameters_and_macs() -> None:
    candidates, fisher = contributions(chain())
    _, found = contributions(chain(), dataclasses.replace(FISHER, by=By.TINYTRAIN))
    levels = [level for layer in candidates.layers for level in layer.levels]
    most = max(v.parameters for v in levels), max(v.macs for v in levels)
    for k, layer in enumerate(candidates.layers):
        for j, level in enumerate(layer.levels, 1):
            cost = level.parameters / most[0] * level.macs / most[1]
            assert found.values[1 + k][j] == pytest.approx(fisher.values[1 + k][j] / cost)


def test_scores_are_deterministic() -> None:
    assert contributions(mixed()) == contributions(mixed())


def test_a_fresh_head_is_warmed_up_first() -> None:
    """All its weights are zero: without that no error would reach any other layer."""
    graph = chain()
    head = graph.layers[-1]
    tensors = list(graph.tensors)
    tensors[head.inputs[1]] = dataclasses.replace(tensors[head.inputs[1]], data=np.zeros(tensors[head.inputs[1]].shape, np.int8))
    graph = dataclasses.replace(graph, tensors=tuple(tensors))
    candidates = find_candidates(compile_graph(graph, "head").train.graph)
    data = data_of(graph, 12, 4)
    totals = []
    for fresh in (False, True):
        job = scores.fisher_job(graph, candidates, data, FISHER, fresh_head=fresh)
        found = scores.fisher_of_sample(job, scores.fisher_tasks(data, FISHER)[0])
        totals.append(sum(map(sum, found["weights"])))
    assert totals[0] == 0.0 < totals[1]


# ---- short runs -------------------------------------------------------------------------------------------------------


def test_finetune_gains_are_differences_to_the_head_alone() -> None:
    graph = chain(classes=3)
    candidates = find_candidates(graph)
    data = data_of(graph, 30, 3)
    settings = dataclasses.replace(FISHER, by=By.FINETUNE, steps=30)
    job = scores.FinetuneJob(graph, *scores.split(data, 1), settings)
    choices = scores.single_choices(candidates)
    assert choices[0] == candidates.none and len(choices) == 1 + sum(n - 1 for n in candidates.options)
    found = {c: scores.finetune(job, candidates.words(c)) for c in choices}
    gained = scores.finetune_contributions(candidates, found, regression=False)
    for choice in choices[1:]:
        slot, option = next((s, o) for s, o in enumerate(choice) if o)
        assert gained.values[slot][option] == pytest.approx(found[choice]["accuracy"] - found[candidates.none]["accuracy"])
    assert len({s["loss"] for s in found.values()}) > len(found) // 2, "what is trained makes a difference"
    again = scores.finetune(job, candidates.words(choices[-1]))
    assert again == found[choices[-1]]


def test_finetune_of_a_regression_gains_in_squared_error() -> None:
    graph = with_op("relu", "mse_s32", 1)
    candidates = find_candidates(compile_graph(graph, "head", None, Loss.MSE).train.graph)
    x = np.stack(random_samples(graph, 20, 1))
    target = np.random.default_rng(0).integers(-20, 20, (20, *graph.tensors[graph.output].shape[1:])).astype(np.int8)
    settings = dataclasses.replace(FISHER, by=By.FINETUNE, steps=40, loss=Loss.MSE, lr=0.01)
    job = scores.FinetuneJob(graph, *scores.split(DataSet(x, None, (), target), 1), settings)
    none, some = candidates.none, scores.single_choices(candidates)[-1]
    found = {c: scores.finetune(job, candidates.words(c)) for c in (none, some)}
    slot, option = next((s, o) for s, o in enumerate(some) if o)
    gained = scores.finetune_contributions(candidates, found, regression=True).values[slot][option]
    assert gained == found[none]["loss"] - found[some]["loss"] != 0


def test_too_few_samples_to_hold_some_out() -> None:
    with pytest.raises(DataError, match="2 samples are too few"):
        scores.split(data_of(chain(), 2, 3), 1)


# ---- the whole search, in this process --------------------------------------------------------------------------------

HOST = find_board("host")
PLANS = 40


@contextmanager
def quiet(_what: str, _total: int) -> Iterator[Callable[[], None]]:
    yield lambda: None


class Dying(InProcess):
    """Stops after some tasks, as a kill would."""

    def __init__(self, tasks: int) -> None:
        self.left = tasks

    def run(self, function: Callable[[Any, Any], Any], shared: Any, tasks: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        for k, result in super().run(function, shared, tasks):
            if self.left == 0:
                raise KeyboardInterrupt
            self.left -= 1
            yield k, result


def case_of(settings: Settings = FISHER) -> Case:
    graph = chain(classes=3)
    return Case(compile_graph(graph, "head"), data_of(graph, 20, 3), None, settings)


@pytest.fixture(autouse=True)
def _no_firmware(monkeypatch: pytest.MonkeyPatch) -> None:
    """No firmware is built, and sources that are edited while the tests run are no other compiler."""
    from mcugrad.board import Firmware  # noqa: PLC0415

    monkeypatch.setattr("mcugrad.report._firmware", lambda board: (Firmware(Path(), 1000, 500), ()))
    monkeypatch.setattr(run, "_compiler_digest", lambda: "as it is")


def searched(out: Path, engine: InProcess | None = None, ram: int = 10**7, settings: Settings = FISHER) -> Outcome:
    out.mkdir(exist_ok=True)
    return search(case_of(settings), Budget(HOST, ram, 10**7, PLANS), Tools(engine or InProcess(), quiet, out))


def need(compiled: Compiled) -> int:
    sizes = compiled.layout.sizes
    return sum(sizes[r] for r in (Region.ARENA, Region.STATE, Region.IO)) + HOST.stack_bytes + 500


@pytest.fixture(scope="module")
def _all() -> int:
    return need(compile_graph(chain(classes=3), "all"))


def test_what_is_found_fits_and_is_worth_more_with_more_memory(tmp_path: Path, _all: int) -> None:
    graph = chain(classes=3)
    head, values = need(compile_graph(graph, "head")), []
    for ram in (head, (2 * head + _all) // 3, (head + 2 * _all) // 3, 2 * _all):
        found = searched(tmp_path, ram=ram)
        assert found.plan.ram.total <= ram and found.solution.cost.ram == found.plan.ram.total
        assert need(compile_graph(graph, found.words)) == found.plan.ram.total
        values.append(found.solution.value)
    assert values == sorted(values) and values[0] < values[1] < values[-1] == found.best_possible
    assert found.solution.proven and found.solution.solver == "everything"


def test_not_even_the_head_fits(tmp_path: Path) -> None:
    head = need(compile_graph(chain(classes=3), "head"))
    with pytest.raises(FitError, match=rf"head alone needs {head:,} bytes of RAM .* budget is {head - 1:,}"):
        searched(tmp_path, ram=head - 1)


@pytest.mark.parametrize("after", [0, 3, SAMPLES + 4])
def test_killed_and_resumed_is_one_run(tmp_path: Path, after: int, _all: int) -> None:
    """At the first score, between two, and while plans are compiled."""
    once, twice = tmp_path / "once", tmp_path / "twice"
    ram = (need(compile_graph(chain(classes=3), "head")) + 2 * _all) // 3
    whole = searched(once, ram=ram)
    with pytest.raises(KeyboardInterrupt):
        searched(twice, Dying(after), ram=ram)
    kept = len((twice / "scores.jsonl").read_text().splitlines()) - 1
    assert kept == min(after, SAMPLES)
    counting = Dying(10**6)
    resumed = searched(twice, counting, ram=ram)
    assert dataclasses.replace(resumed, resumed=0) == whole and resumed.resumed == kept
    assert (twice / "scores.jsonl").read_text() == (once / "scores.jsonl").read_text()
    assert (twice / "plans.jsonl").read_text() == (once / "plans.jsonl").read_text()
    again = searched(twice, Dying(0), ram=ram)
    assert dataclasses.replace(again, resumed=0) == whole


def test_scores_of_other_inputs_are_refused(tmp_path: Path) -> None:
    searched(tmp_path)
    with pytest.raises(UsageError, match=r"other inputs: samples \(6, now 7\)"):
        searched(tmp_path, settings=dataclasses.replace(FISHER, samples=7))
    searched(tmp_path, settings=dataclasses.replace(FISHER, by=By.TINYTRAIN), engine=Dying(10**6))


def test_plans_of_another_compiler_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    searched(tmp_path)
    before = (tmp_path / "plans.jsonl").read_text().splitlines()
    path = tmp_path / "plans.jsonl"
    path.write_text("\n".join([before[0], *(line.replace("[", "[1") for line in before[1:])]) + "\n")
    monkeypatch.setattr(run, "_compiler_digest", lambda: "other")
    searched(tmp_path)
    assert path.read_text().splitlines()[1:] == before[1:]


# ---- the file of results ----------------------------------------------------------------------------------------------


def test_a_line_that_was_cut_in_two_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "scores.jsonl"
    store = open_store(path, {"a": 1})
    store.add("x", [0.1, 2])
    store.add("y", {"z": 1e-300})
    store.close()
    whole = path.read_text()
    last = whole.splitlines()[-1]
    for cut in range(1, len(last) + 1):
        path.write_text(whole[: -1 - cut])
        again = open_store(path, {"a": 1})
        assert again.known == {"x": [0.1, 2]} and again.resumed == 1
        again.add("y", {"z": 1e-300})
        again.close()
        assert path.read_text() == whole


@pytest.mark.parametrize("text", ["hello\n", "[]\n", '{"inputs": 3}\n', '{"inputs": {"a": 1}}\nno\n', '{"inputs": {"a": 1}}\n{"key": 1}\n'])
def test_a_file_that_is_something_else_is_left_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "scores.jsonl"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"scores\.jsonl"):
        open_store(path, {"a": 1})
    assert path.read_text() == text
