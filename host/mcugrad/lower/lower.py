"""A graph and its backward pass to step records: each op's facts fill records whose fields have the same names."""

from __future__ import annotations

import numpy as np

from mcugrad.autodiff.differentiate import Loss, TrainGraph
from mcugrad.graph import Graph
from mcugrad.lower.backward import backward, save
from mcugrad.lower.blocks import Block, merged
from mcugrad.lower.commit import commit_steps
from mcugrad.lower.context import WORD, Facts, Lowering, Options, make_value
from mcugrad.lower.exponents import initial_exponents
from mcugrad.lower.forward import copy_step, forward
from mcugrad.lower.loss import head_steps, loss_step
from mcugrad.lower.program import Draft, Program, Segments, Value
from mcugrad.lower.saved import what_is_saved
from mcugrad.plan import Region


def lower(train: TrainGraph, options: Options | None = None) -> Program:
    """Write the forward and the backward pass as step records.

    Raises ModelError for an op that has no step kind.
    """
    low = Lowering(train, options or Options(), initial_exponents(train), what_is_saved(train))
    graph = train.graph
    sample, inputs = _sample(graph)
    outputs = tuple(make_value(f"output{k}", Region.IO, "int8_t", graph.tensors[i].size) for k, i in enumerate(graph.outputs))
    moves = _place_ends(low, inputs, outputs)
    args, result = make_value("args", Region.IO, "mg_args"), make_value("result", Region.IO, "mg_result")
    target = make_value("target", Region.IO, "int8_t", outputs[0].nbytes) if train.loss is Loss.MSE else None
    rng = make_value("rng", Region.STATE, "mg_rng", data=np.array([low.options.seed, 0], "<u4").tobytes())
    unit = make_value("unit", Region.ARENA, "float")
    common: Facts = {"args": args, "result": result, "rng": rng, "unit": unit, "target": target}
    segments, logits = _segments(low, moves, common)
    return Program(
        segments=segments,
        sample=sample,
        target=target,
        args=args,
        result=result,
        outputs=outputs,
        rng=rng,
        classes=train.classes,
        model_hash=graph.model_hash,
        tensors=dict(low.tensors),
        logits=logits,
        trained=tuple(low.trained),
        fixed=_fixed(segments, (rng, target, args, result, *outputs)),
        notes=(*graph.notes, *low.notes),
    )


def _sample(graph: Graph) -> tuple[Value, tuple[Value, ...]]:
    """One value for all graph inputs, and where each of them is in it: one behind the other, at multiples of a word."""
    starts, end = [], 0
    for i in graph.inputs:
        starts.append(-(-end // WORD) * WORD)
        end = starts[-1] + graph.tensors[i].size
    sample = make_value("sample", Region.ARENA, "int8_t", end)
    return sample, tuple(sample.view(at, graph.tensors[i].size) for at, i in zip(starts, graph.inputs, strict=True))


def _place_ends(low: Lowering, inputs: tuple[Value, ...], outputs: tuple[Value, ...]) -> list[Draft]:
    """Let graph outputs live in IO. An output that no op writes, or that stands twice, is copied; returns those copies."""
    graph = low.train.graph
    low.tensors.update(zip(graph.inputs, inputs, strict=True))
    written = {op.outputs[0] for op in graph.ops}
    moves = []
    for index, value in zip(graph.outputs, outputs, strict=True):
        if index in written and index not in low.tensors:
            low.tensors[index] = value
        else:
            flat = merged(Block((value.nbytes,), 0, (1,), 0, (1,)), value.name)
            moves.append(copy_step(low, value.name, flat, low.tensor(index), value))
    return moves


def _segments(low: Lowering, moves: list[Draft], common: Facts) -> tuple[Segments, Value | None]:
    """The five segments, and the logits. The backward segment ends with the tick of the random generator."""
    train = low.train
    last = [op for op in (train.head, train.behind) if op is not None]
    steps = [step for i in train.graph.inputs for step in save(low, i)]
    for op in train.graph.ops:
        if op not in last:
            steps += [*forward(low, op), *save(low, op.outputs[0])]
    evaluation: list[Draft] = []
    logits: Value | None = None
    if train.head is not None:
        step, evaluation, logits = head_steps(low, train.head)
        steps.append(step)
    if train.loss is None:
        return ((*steps, *moves), (), (), (), ()), None
    loss = loss_step(low, logits, common)
    back = tuple(backward(low, step, common) for step in train.backward)
    return (tuple(steps), (*evaluation, *moves), (loss,), (*back, low.emit("tick", "rng", common)), commit_steps(low)), logits


def _fixed(segments: Segments, first: tuple[Value | None, ...]) -> tuple[Value, ...]:
    """The values outside of the arena: those that host and application touch, then in the order of their use."""
    named = [v for segment in segments for step in segment for v in step.refs.values()]
    return tuple(v for v in dict.fromkeys([*first, *named]) if v is not None and v.region is not Region.ARENA)
