"""Plans for one board, each compiled once, however many tests and steps ask for it."""

from __future__ import annotations

from pathlib import Path

from mcugrad.autodiff import Loss
from mcugrad.board import Board
from mcugrad.graph.permute import Channels
from mcugrad.lower import Options
from mcugrad.nearest import Request, fit, require_fit_of
from mcugrad.pipeline import Compiled


class Plans:
    """Compiles for ``board``, within its RAM."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._known: dict[tuple[object, ...], Compiled] = {}

    def compile(
        self,
        model: Path,
        train: str = "head",
        classes: int | None = None,
        *,
        options: Options | None = None,
        loss: Loss | None = None,
        channels: Channels = Channels.FIRST,
    ) -> Compiled:
        """The plan of a model file, for what `mcugrad train` says with --train, --classes and so on.

        Raises ModelError, UsageError, FitError.
        """
        request = Request(model, train, classes, options or Options(), loss, channels)
        written = (model.stat().st_mtime_ns, model.stat().st_size) if model.is_file() else ()
        key = (request, *written)
        if key not in self._known:
            compiled, figures = fit(request, request.compile(), self._board)
            require_fit_of(request, compiled, figures)
            self._known[key] = compiled
        return self._known[key]
