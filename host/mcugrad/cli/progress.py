"""Progress bars that stay quiet where nobody looks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from mcugrad.cli.common import Output


@contextmanager
def bar(output: Output, what: str, total: int) -> Iterator[Callable[[], None]]:
    """A bar over ``total`` items; call the yielded function once an item."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=output.console, transient=True, disable=output.as_json) as progress:
        task = progress.add_task(what, total=total)
        yield lambda: progress.advance(task)


@contextmanager
def training_bar(output: Output, total: int) -> Iterator[Callable[[float], None]]:
    """A bar with the loss, samples per second and the time left; call the yielded function with each step's loss."""
    columns = (
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.3f}"),
        TextColumn("{task.fields[speed]} samples/s"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=output.console, disable=output.as_json) as progress:
        task = progress.add_task("training", total=total, loss=0.0, speed="–")
        mean = [0.0, 0.0]

        def step(loss: float) -> None:
            mean[0] = 0.98 * mean[0] + 0.02 * loss
            mean[1] = 0.98 * mean[1] + 0.02
            speed = progress.tasks[0].speed
            progress.update(task, advance=1, loss=mean[0] / mean[1], speed=f"{speed:.1f}" if speed else "–")

        yield step
