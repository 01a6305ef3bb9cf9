"""--recompute from the command line: a smaller plan that trains to the same weights."""

from __future__ import annotations

from pathlib import Path

from e2e.conftest import MODEL, Motions
from helpers.cli import mcugrad
from helpers.motions import CLASSES


def test_fault_66_recompute_needs_less_ram_and_trains_to_the_same_model(motion_files: Motions, tmp_path: Path) -> None:
    wanted = ("--train", "all", "--board", "host", "--classes", CLASSES)
    plain, less = (mcugrad("plan", MODEL, *wanted, *extra, "--json").result for extra in ((), ("--recompute",)))
    assert less["ram"]["arena"] < plain["ram"]["arena"] and less["macs_again"] > 0 == plain["macs_again"]
    models = []
    for k, extra in enumerate(((), ("--recompute",))):
        out = tmp_path / f"trained{k}.tflite"
        run = mcugrad("train", MODEL, "--data", motion_files.train, "--epochs", 1, "--seed", 3, *wanted, *extra, "--out", out, "--json")
        assert run.result["plan"]["macs_again"] == (less if extra else plain)["macs_again"]
        models.append(out.read_bytes())
    assert models[0] == models[1]
