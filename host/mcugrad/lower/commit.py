"""The commit segment of a plan for micro-batches: one step for each trained tensor that sums up."""

from __future__ import annotations

from mcugrad.lower.context import Lowering
from mcugrad.lower.program import Draft


def commit_steps(low: Lowering) -> tuple[Draft, ...]:
    """Move the sums of all trained layers up; none where every sample updates at once."""
    steps = []
    for layer in low.trained:
        facts = low.layers[layer.name]
        if layer.weights is not None and facts["af"]:
            steps.append(low.emit("commit_s16", layer.name, facts | {"n": layer.weights.nbytes // 2}))
        if layer.bias is not None and facts["bias_af"]:
            steps.append(low.emit("commit_s32", layer.name, facts | {"o": layer.bias.nbytes // 4, "af": facts["bias_af"]}))
    return tuple(steps)
