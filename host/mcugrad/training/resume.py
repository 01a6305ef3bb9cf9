"""From a model and a checkpoint back to the plan and the STATE that belong together."""

from __future__ import annotations

from pathlib import Path

from mcugrad.errors import PlanError
from mcugrad.lower import Options
from mcugrad.pipeline import Compiled, compile_model
from mcugrad.plan import decode
from mcugrad.training.checkpoint import read_checkpoint


def compile_for(model: Path, checkpoint: Path) -> tuple[Compiled, bytes]:
    """(plan, STATE). Raises PlanError where the checkpoint is of another model, or of a plan that this compiler does not make."""
    saved = read_checkpoint(checkpoint)
    compiled = compile_model(model, saved.scheme, saved.classes, Options(saved.ws, saved.seed))
    header = decode(compiled.plan).header
    if header.model_hash != saved.model_hash:
        raise PlanError(
            f"{checkpoint} was trained from model {saved.model_hash:08x}, {model} is {header.model_hash:08x}",
            "give the model it was trained from",
        )
    if header.plan_crc != saved.plan_crc:
        raise PlanError(
            f"{checkpoint} belongs to plan {saved.plan_crc:08x}, this version makes {header.plan_crc:08x}",
            "use the version that trained it",
        )
    return compiled, saved.state
