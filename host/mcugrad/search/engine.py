"""Where the work is done: in this process, in several, or on a cluster. Each engine gives the same results, in the order they are done."""

from __future__ import annotations

import importlib
import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from mcugrad.errors import McugradError, UnavailableError, UsageError

CONNECT_S = 10
S = TypeVar("S")
T = TypeVar("T")
R = TypeVar("R")


class Engine(Protocol):
    """Runs ``function(shared, task)`` for every task and yields (number of the task, result) as each is done."""

    def run(self, function: Callable[[S, T], R], shared: S, tasks: Sequence[T]) -> Iterator[tuple[int, R]]: ...


class InProcess:
    """One after the other, here."""

    def run(self, function: Callable[[S, T], R], shared: S, tasks: Sequence[T]) -> Iterator[tuple[int, R]]:
        for k, task in enumerate(tasks):
            yield k, function(shared, task)


class Processes:
    """Several processes of this machine."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool

    def run(self, function: Callable[[S, T], R], shared: S, tasks: Sequence[T]) -> Iterator[tuple[int, R]]:
        try:
            futures: dict[Future[R], int] = {self._pool.submit(function, shared, task): k for k, task in enumerate(tasks)}
            for done in as_completed(futures):
                yield futures[done], done.result()
        except BrokenProcessPool:
            hint = "is memory short? try fewer --jobs; what was measured is kept, the same command goes on from there"
            raise McugradError("a worker process has died", hint) from None


class Cluster:
    """The workers of a dask.distributed scheduler. They need mcugrad, and a C compiler where the host library is not built."""

    def __init__(self, client: Any, as_done: Callable[..., Any]) -> None:
        self._client = client
        self._as_done = as_done

    def run(self, function: Callable[[S, T], R], shared: S, tasks: Sequence[T]) -> Iterator[tuple[int, R]]:
        held = self._client.scatter(shared, broadcast=True, hash=False)
        futures = {self._client.submit(function, held, task, pure=False): k for k, task in enumerate(tasks)}
        try:
            for done in self._as_done(futures):
                yield futures[done], done.result()
        finally:
            self._client.cancel(list(futures))


@contextmanager
def open_engine(jobs: int, scheduler: str | None) -> Iterator[Engine]:
    """``jobs`` processes of this machine, or the cluster behind a scheduler's address.

    Raises UnavailableError where dask.distributed is not installed or the scheduler does not answer.
    """
    if scheduler is not None:
        with _cluster(scheduler) as cluster:
            yield cluster
    elif jobs == 1:
        yield InProcess()
    else:
        # A fresh interpreter each: a fork would copy the threads of the progress bar.
        pool = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), _die_at_ctrl_c)
        try:
            yield Processes(pool)
        finally:
            pool.shutdown(cancel_futures=True)


def _die_at_ctrl_c() -> None:
    """Ctrl-C reaches the whole process group: a worker dies of it quietly, its parent reports."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def _cluster(address: str) -> Iterator[Cluster]:
    try:
        distributed: Any = importlib.import_module("distributed")
    except ImportError as e:
        raise UnavailableError(
            f"--scheduler needs dask.distributed, which is not installed ({e})", "pip install 'mcugrad[cluster]'"
        ) from None
    try:
        client = distributed.Client(address, timeout=CONNECT_S)
    except (OSError, TimeoutError) as e:
        raise UnavailableError(f"the scheduler {address} does not answer ({e})", "start one with: dask scheduler") from None
    except ValueError as e:
        raise UsageError(f"--scheduler {address}: {e}", "an address such as tcp://192.168.1.5:8786") from None
    with client:
        yield Cluster(client, distributed.as_completed)
