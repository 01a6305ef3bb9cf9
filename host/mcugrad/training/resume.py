"""From a model and a checkpoint back to the plan and the STATE that belong together."""

from __future__ import annotations

from pathlib import Path

from mcugrad.autodiff import Loss
from mcugrad.errors import PlanError
from mcugrad.graph.permute import Channels
from mcugrad.importer import read_model
from mcugrad.lower import Options
from mcugrad.pipeline import Compiled, compile_model
from mcugrad.plan import decode
from mcugrad.training.checkpoint import read_checkpoint


def compile_for(model: Path, checkpoint: Path) -> tuple[Compiled, bytes]:
    """(plan, STATE). Raises PlanError where the checkpoint is of another model, or of a plan that this compiler does not make."""
    saved = read_checkpoint(checkpoint)
    found = read_model(model).model_hash  # before the scheme: its layers need not be in another model
    if found != saved.model_hash:
        raise PlanError(
            f"{checkpoint} was trained from model {saved.model_hash:08x}, {model} is {found:08x}", "give the model it was trained from"
        )
    options = Options(saved.ws, saved.seed, saved.batch)
    compiled = compile_model(model, saved.scheme, saved.classes, options, Loss(saved.loss), Channels(saved.channels), saved.ram)
    made = decode(compiled.plan).header.plan_crc
    if made != saved.plan_crc:
        raise PlanError(
            f"{checkpoint} belongs to plan {saved.plan_crc:08x}, scheme {saved.scheme} of {model} makes {made:08x}",
            "use the version of mcugrad that trained it",
        )
    return compiled, saved.state
