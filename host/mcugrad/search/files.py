"""What a search leaves behind: the scheme for --train, and a report for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mcugrad.search.run import Budget, Outcome
from mcugrad.search.scores import Settings
from mcugrad.training.checkpoint import write_atomic


def as_dict(found: Outcome, settings: Settings, budget: Budget) -> dict[str, Any]:
    """The report as one object."""
    solution, candidates = found.solution, found.candidates
    biases, *weights = found.contributions.values
    return {
        "scheme": candidates.as_json(solution.choice),
        "train": found.words,
        "by": settings.by.value,
        "unit": found.contributions.unit,
        "contribution": solution.value,
        "contribution_of_everything": found.best_possible,
        "budget": {"board": budget.board.name, "ram": budget.ram, "flash": budget.flash},
        "plan": found.plan.as_dict(),
        "solver": {"name": solution.solver, "proven": solution.proven, "plans_compiled": solution.compiled},
        "scores_resumed": found.resumed,
        "contributions": {
            "bias": {str(k + 1): value for k, value in enumerate(biases)},
            "weights": {
                layer.name: {repr(level.ratio): value for level, value in zip(layer.levels, values[1:], strict=True)}
                for layer, values in zip(candidates.layers, weights, strict=True)
                if layer.levels
            },
        },
        "notes": list(found.notes),
    }


def write_files(found: Outcome, settings: Settings, budget: Budget, out: Path) -> dict[str, str]:
    """Write scheme.json, report.json and report.md; their paths."""
    result = as_dict(found, settings, budget)
    contents = {
        "scheme": (out / "scheme.json", json.dumps(result["scheme"], indent=2) + "\n"),
        "report_json": (out / "report.json", json.dumps(result, indent=2) + "\n"),
        "report": (out / "report.md", _markdown(found, settings, budget)),
    }
    for path, text in contents.values():
        write_atomic(path, text.encode())
    return {name: str(path) for name, (path, _) in contents.items()}


def _markdown(found: Outcome, settings: Settings, budget: Budget) -> str:
    solution, plan = found.solution, found.plan
    proof = "no better one fits" if solution.proven else "not proven to be the best"
    lines = [
        f"# Scheme for {budget.board.name}",
        "",
        f"`--train {found.words}`",
        "",
        f"- contribution {solution.value:.6g} of {found.best_possible:.6g} ({found.contributions.unit}); {solution.solver}, {proof}; "
        f"{solution.compiled:,} plans compiled",
        f"- RAM {plan.ram.total:,} of {budget.ram:,} bytes: arena {plan.ram.arena:,} (peak at {plan.peak_step}), state {plan.ram.state:,}, "
        f"io {plan.ram.io:,}, stack {plan.ram.stack:,}, runtime {plan.ram.runtime:,}",
        f"- flash {plan.flash.total:,} of {budget.flash:,} bytes: plan {plan.flash.plan:,}, const {plan.flash.const:,}, "
        f"firmware {plan.flash.firmware:,}",
        f"- MACs a step: forward {plan.macs['forward']:,}, backward {plan.macs['backward']:,}",
        *(f"- note: {note}" for note in found.notes),
        "",
        f"## Contributions ({settings.by.value})",
        "",
        "Weights of a layer at each ratio of its input channels, and the biases from a layer on to the end. What is chosen stands in bold.",
        "",
        *_table(found),
    ]
    return "\n".join(lines) + "\n"


def _table(found: Outcome) -> list[str]:
    candidates, choice = found.candidates, found.solution.choice
    biases, *weights = found.contributions.values
    ratios = sorted({level.ratio for layer in candidates.layers for level in layer.levels})
    rows = [["layer", *(f"weights {ratio:g}" for ratio in ratios), "biases from here"]]
    for k, layer in enumerate(candidates.layers):
        cells = {level.ratio: (weights[k][j + 1], choice[1 + k] == j + 1) for j, level in enumerate(layer.levels)}
        depth = len(candidates.layers) - 1 - k
        bias = _cell(biases[depth], bold=depth == choice[0] > 0) if depth else ""
        rows.append([layer.name, *(_cell(cells[r][0], bold=cells[r][1]) if r in cells else "" for r in ratios), bias])
    return [_row(rows[0]), "|" + "---|" * len(rows[0]), *map(_row, rows[1:])]


def _cell(value: float, *, bold: bool) -> str:
    return f"**{value:.4g}**" if bold else f"{value:.4g}"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
