"""A run under way, kept on the host so that it can be taken up again: which run it is, and where its STATE is.

STATE is on the board, and after a snapshot or Ctrl-C in the file too. The board counts what has changed its STATE since it was set as a
whole (CAPS: state_id, changes), so that a host that comes back knows which samples are in it, the replies that were lost included. Where
the board was reset or did something else meanwhile, the file's STATE is written back, and the samples behind it are trained again: the
order comes from the seed, the random numbers are in STATE, so the run ends with the same bytes.
"""

from __future__ import annotations

import contextlib
import json
import zlib
from collections.abc import Container
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from mcugrad.data import DataSet
from mcugrad.errors import DataError, PlanError, UsageError
from mcugrad.link import Loaded, Session
from mcugrad.pipeline import Compiled
from mcugrad.plan import decode
from mcugrad.training.checkpoint import write_atomic
from mcugrad.training.recipe import Recipe
from mcugrad.training.run import Evaluation, Regression, Step

MAGIC = b"MGRUN01\n"


@dataclass(frozen=True, slots=True)
class Progress:
    """``state`` holds the first ``position`` samples of the run; it is empty where that is the plan's own STATE.

    ``state_id``: the session that has set STATE on the board as a whole, with the first ``set_at`` samples in it; 0: do not look there.
    """

    plan_crc: int
    data_crc: int
    recipe: Recipe
    state_id: int
    set_at: int
    position: int
    state: bytes

    @classmethod
    def of(cls, compiled: Compiled, data: DataSet, recipe: Recipe) -> Progress:
        """A run that has not begun."""
        return cls(decode(compiled.plan).header.plan_crc, crc_of(data), recipe, 0, 0, 0, b"")

    def require_same(self, other: Progress) -> None:
        """Raise PlanError, DataError or UsageError where ``other`` is not the same run."""
        if other.plan_crc != self.plan_crc:
            raise PlanError(
                f"the run to resume has plan {self.plan_crc:08x}, these options make {other.plan_crc:08x}",
                "give the model and the options that it was begun with, and the same version of mcugrad",
            )
        if other.data_crc != self.data_crc:
            raise DataError(
                f"the run to resume was begun with data {self.data_crc:08x}, --data has {other.data_crc:08x}", "give the same file"
            )
        for name in (f.name for f in fields(Recipe)):
            before, now = getattr(self.recipe, name), getattr(other.recipe, name)
            if before != now:
                raise UsageError(f"the run to resume has --{name.replace('_', '-')} {before}, not {now}", "give the options of its start")


def crc_of(data: DataSet) -> int:
    """CRC-32 of the samples, labels and targets as they go over the wire."""
    crc = 0
    for part in (data.x, data.y, data.target):
        if part is not None:
            crc = zlib.crc32(np.ascontiguousarray(part).tobytes(), crc)
    return crc


def write_progress(path: Path, progress: Progress) -> None:
    """magic, u32 length of the JSON head, the head, STATE or nothing, u32 CRC-32 of all before."""
    head = {**{f.name: getattr(progress, f.name) for f in fields(Progress) if f.name != "state"}, "recipe": asdict(progress.recipe)}
    text = json.dumps(head).encode()
    body = MAGIC + len(text).to_bytes(4, "little") + text + progress.state
    write_atomic(path, body + zlib.crc32(body).to_bytes(4, "little"))


def read_progress(path: Path) -> Progress:
    """Raises UsageError where there is none, PlanError where the file is damaged."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise UsageError(
            f"there is no run to resume: {path} does not exist", "run without --resume: a finished run has no more to do"
        ) from None
    if not raw.startswith(MAGIC) or zlib.crc32(raw[:-4]) != int.from_bytes(raw[-4:], "little"):
        raise PlanError(f"{path} is damaged", "run without --resume")
    start = len(MAGIC) + 4
    size = int.from_bytes(raw[len(MAGIC) : start], "little")
    head = json.loads(raw[start : start + size])
    return Progress(**{**head, "recipe": Recipe(**head["recipe"])}, state=raw[start + size : -4])


@dataclass(frozen=True, slots=True)
class TakenUp:
    """``progress`` as it is from here on; the board's STATE holds the first ``position`` samples. ``source``: board, or snapshot."""

    progress: Progress
    position: int
    source: str


def begin(session: Session, progress: Progress, state: bytes = b"") -> Progress:
    """What is to be written when a run begins: this session has just set the board's STATE, to ``state`` or to the plan's own."""
    return replace(progress, state_id=session.nonce, set_at=0, position=0, state=state)


def take_up(session: Session, compiled: Compiled, progress: Progress, samples: int) -> TakenUp:
    """Bring the board to where the run can go on: as it stands, where it still holds this run, else from the file's STATE."""
    commits = progress.recipe.commits(samples)
    header = decode(compiled.plan).header
    caps = session.caps
    if caps.plan_crc == progress.plan_crc and progress.state_id and caps.state_id == progress.state_id:
        session.adopt(Loaded(header.plan_crc, header.arena_bytes, header.state_bytes, header.io_bytes))
        position, commit_due = position_after(caps.changes, progress.set_at, commits)
        if commit_due:
            session.commit()
        return TakenUp(progress, position, "board")
    session.load_plan(compiled.plan)
    if progress.state:
        session.write_state(progress.state)
    return TakenUp(replace(progress, state_id=session.nonce, set_at=progress.position), progress.position, "snapshot")


def position_after(changes: int, position: int, commits: Container[int]) -> tuple[int, bool]:
    """(samples in STATE, whether the last of them still waits for its commit) after ``changes`` steps and commits from ``position``."""
    while changes > 0:
        changes -= 1
        if position in commits:
            if changes == 0:
                return position + 1, True
            changes -= 1
        position += 1
    return position, False


def earlier_steps(log: Path, position: int) -> list[Step]:
    """The steps before ``position`` whose replies have come, from the log of the run. A step that was done twice counts once."""
    found = {e["step"]: Step(**{f.name: e[f.name] for f in fields(Step)}) for e in _events(log) if e["event"] == "step"}
    return [found[k] for k in sorted(found) if k < position]


def earlier_evaluation(log: Path) -> Evaluation | Regression | None:
    """What was measured before the run, from its log."""
    for e in _events(log):
        if e["event"] == "evaluation" and e["when"] == "before":
            return Regression(e["mse"], 0.0) if "mse" in e else Evaluation(e["accuracy"], np.array(e["confusion"]), 0.0)
    return None


def _events(log: Path) -> list[dict[str, Any]]:
    events = []
    with contextlib.suppress(FileNotFoundError):
        for line in log.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(ValueError):  # the last line of a process that was killed
                events.append(json.loads(line))
    return events
