"""`mcugrad search` as a user runs it: files, exit codes, several processes, a cluster, Ctrl-C, and how long a net takes."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from e2e.conftest import MODEL, Motions
from helpers.cli import finished, mcugrad, started
from helpers.motions import CLASSES
from helpers.shared import shared

BOARD = ("--board", "host")
PLANS = ("--plans", 30)
PATIENCE_S = 60.0


def searching(files: Motions, out: Path, *more: str | float | Path) -> tuple[str | float | Path, ...]:
    return ("search", MODEL, "--data", files.train, "--classes", CLASSES, "--out", out, *BOARD, *PLANS, *more)


def head_ram() -> int:
    done = mcugrad("plan", MODEL, "--classes", CLASSES, "--train", "head", *BOARD, "--json")
    return int(done.result["ram"]["total"])


@pytest.fixture(scope="module")
def found(motion_files: Motions, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A search with 3,000 bytes more than the head needs."""
    out = tmp_path_factory.mktemp("search")
    return mcugrad(*searching(motion_files, out, "--sram", head_ram() + 3000, "--json")).result


def scores_in(result: dict[str, Any]) -> list[str]:
    return sorted((Path(result["paths"]["scheme"]).parent / "scores.jsonl").read_text(encoding="utf-8").splitlines())


def test_the_scheme_that_is_found_trains_within_the_budget(found: dict[str, Any]) -> None:
    scheme = Path(found["paths"]["scheme"])
    assert json.loads(scheme.read_text(encoding="utf-8")) == found["scheme"]
    by_file, by_words = (
        mcugrad("plan", MODEL, "--classes", CLASSES, "--train", train, *BOARD, "--sram", found["budget"]["ram"], "--json").result
        for train in (scheme, found["train"])
    )
    assert by_file["ram"] == by_words["ram"] == found["plan"]["ram"] and by_file["scheme"] == found["plan"]["scheme"]
    assert by_file["ram"]["total"] <= found["budget"]["ram"] == head_ram() + 3000
    assert 0 < found["contribution"] < found["contribution_of_everything"]
    assert found["scheme"]["bias"] or found["scheme"]["weights"]


def test_the_report_names_every_layer_and_what_is_chosen(found: dict[str, Any]) -> None:
    text = Path(found["paths"]["report"]).read_text(encoding="utf-8")
    assert f"--train {found['train']}" in text and f"RAM {found['plan']['ram']['total']:,} of" in text
    for layer, values in found["contributions"]["weights"].items():
        row = next(line for line in text.splitlines() if line.startswith(f"| {layer} |"))
        assert ("**" in row) >= (layer in found["scheme"]["weights"])
        assert set(map(float, values)) <= {0.125, 0.25, 0.5, 1.0}
    assert json.loads(Path(found["paths"]["report_json"]).read_text(encoding="utf-8")) == {k: v for k, v in found.items() if k != "paths"}


def test_people_read_the_scheme_and_its_cost(motion_files: Motions, tmp_path: Path) -> None:
    done = mcugrad(*searching(motion_files, tmp_path, "--sram", head_ram()))
    assert done.code == 0 and "--train head" in done.out and f"{head_ram():,} bytes of {head_ram():,}" in done.out
    again = mcugrad(*searching(motion_files, tmp_path, "--sram", head_ram() + 3000))
    assert "32 scores were known from before" in again.out


def test_several_processes_find_the_same(found: dict[str, Any], motion_files: Motions, tmp_path: Path) -> None:
    parallel = mcugrad(*searching(motion_files, tmp_path, "--sram", found["budget"]["ram"], "--jobs", 2, "--json")).result
    assert scores_in(parallel) == scores_in(found)
    assert {k: v for k, v in parallel.items() if k != "paths"} == {k: v for k, v in found.items() if k != "paths"}


def test_short_runs(motion_files: Motions, tmp_path: Path) -> None:
    more = ("--by", "finetune", "--steps", 56, "--lr", 0.1, "--eval", motion_files.held_out, "--json")
    result = mcugrad(*searching(motion_files, tmp_path, *more)).result
    gains = [v for values in result["contributions"]["weights"].values() for v in values.values()]
    assert result["unit"] == "accuracy gained" and any(gains) and all(-1 <= g <= 1 for g in gains)
    runs = 1 + len(gains) + len(result["contributions"]["bias"]) - 1
    assert len(scores_in(result)) == 1 + runs


def test_ctrl_c_keeps_the_scores(motion_files: Motions, tmp_path: Path) -> None:
    """The second command goes on where the first was stopped."""
    more = ("--by", "finetune", "--steps", 400, "--eval", motion_files.held_out, "--jobs", 2)
    process = started(*searching(motion_files, tmp_path, *more))
    scores, end = tmp_path / "scores.jsonl", time.monotonic() + PATIENCE_S
    while not scores.exists() or len(scores.read_text().splitlines()) < 3:
        assert process.poll() is None and time.monotonic() < end, process.communicate()
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    done = finished(process)
    assert done.code == 130 and "the same command goes on from there" in done.err and "Traceback" not in done.err, done
    kept = scores.read_text(encoding="utf-8")
    assert kept.count("\n") >= 3
    again = started(*searching(motion_files, tmp_path, *more))
    while scores.read_text() == kept:
        assert again.poll() is None and time.monotonic() < end + PATIENCE_S, again.communicate()
        time.sleep(0.02)
    os.killpg(again.pid, signal.SIGINT)
    assert finished(again).code == 130
    assert scores.read_text(encoding="utf-8").startswith(kept)


def test_a_budget_below_the_head(motion_files: Motions, tmp_path: Path) -> None:
    head = head_ram()
    mcugrad(*searching(motion_files, tmp_path, "--sram", head - 1)).fails(8, f"head alone needs {head:,} bytes of RAM", f"{head - 1:,}")
    mcugrad(*searching(motion_files, tmp_path, "--flash", 100)).fails(8, "head alone needs .* bytes of flash", "budget is 100")


def test_bad_input(motion_files: Motions, tmp_path: Path) -> None:
    labels = tmp_path / "labels.npz"
    with np.load(motion_files.train) as arrays:
        np.savez(labels, x=arrays["x"], y=arrays["y"] + CLASSES)
    bad = Motions(labels, labels)
    mcugrad(*searching(bad, tmp_path / "a")).fails(4, "label")
    mcugrad(*searching(Motions(tmp_path / "none.npz", labels), tmp_path / "a")).fails(4, "no data file")
    mcugrad(*searching(motion_files, tmp_path / "a", "--lr", "nan")).fails(2, "--lr nan")
    mcugrad(*searching(motion_files, labels)).fails(2, "--out .*cannot write")
    mcugrad(*searching(motion_files, tmp_path / "a", "--board", "nothing")).fails(2, "no board")


def test_other_inputs_are_refused(found: dict[str, Any], motion_files: Motions) -> None:
    out = Path(found["paths"]["scheme"]).parent
    mcugrad(*searching(motion_files, out, "--seed", 2)).fails(2, r"other inputs: .*seed \(1, now 2\)", "another --out")
    mcugrad(*searching(Motions(motion_files.held_out, motion_files.held_out), out)).fails(2, r"other inputs: data \(\w+, now \w+\)")


def test_no_dask(motion_files: Motions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    done = mcugrad(*searching(motion_files, tmp_path, "--scheduler", "tcp://localhost:8786"))
    done.fails(69, "dask.distributed", r"pip install 'mcugrad\[cluster\]'")


def test_a_cluster_finds_the_same(found: dict[str, Any], motion_files: Motions, tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed", reason="dask.distributed is not installed")
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster:
        more = ("--sram", found["budget"]["ram"], "--scheduler", cluster.scheduler_address, "--json")
        result = mcugrad(*searching(motion_files, tmp_path, *more)).result
    assert scores_in(result) == scores_in(found)
    assert {k: v for k, v in result.items() if k != "paths"} == {k: v for k, v in found.items() if k != "paths"}


def test_a_scheduler_that_does_not_answer(motion_files: Motions, tmp_path: Path) -> None:
    pytest.importorskip("distributed", reason="dask.distributed is not installed")
    mcugrad(*searching(motion_files, tmp_path, "--scheduler", "tcp://127.0.0.1:1")).fails(69, "scheduler tcp://127.0.0.1:1 does not answer")
    mcugrad(*searching(motion_files, tmp_path, "--scheduler", "what://1")).fails(2, "--scheduler what://1")


def processor_seconds() -> float:
    """Of this process and of those it has waited for."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(u.ru_utime + u.ru_stime for u in usages)


@pytest.mark.slow
@pytest.mark.qemu
def test_a_keyword_spotting_net_takes_less_than_two_minutes(tmp_path: Path) -> None:
    """MLPerf Tiny's, Fisher scores. Processor time of all processes: on cores that are free the clock shows no more than that."""
    with np.load(shared("datasets/fsdd_spoken_digits_mfcc_int8.npz")) as arrays:
        np.savez(tmp_path / "digits.npz", x=arrays["x"], y=arrays["y"].astype(np.int64))
    model = shared("models/mlperf_tiny/kws_ref_model_int8.tflite")
    start = processor_seconds()
    result = mcugrad(
        *("search", model, "--data", tmp_path / "digits.npz", "--classes", 10, "--board", "qemu-mps2-an386", "--sram", 60_000),
        *("--jobs", 2, "--out", tmp_path / "out", "--json"),
    ).result
    assert processor_seconds() - start < 120
    assert result["plan"]["ram"]["total"] <= 60_000 and result["scheme"]["weights"]
