"""What the READMEs say, done as they say it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from e2e.conftest import MODEL
from helpers.motions import write_motions
from mcugrad.paths import root

pytestmark = pytest.mark.qemu

PATIENCE_S = 60.0
ENV = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "120"}


def commands(readme: Path, heading: str) -> list[str]:
    """The commands of the first indented block behind a heading; a backslash joins lines."""
    text = readme.read_text(encoding="utf-8").split(heading, 1)[1]
    block = re.search(r"(?:^    .*\n)+", text, re.M)
    assert block is not None
    return [line.strip() for line in block[0].replace("\\\n", " ").splitlines()]


def run(command: str, folder: Path) -> str:
    done = subprocess.run(["bash", "-c", command], cwd=folder, env=ENV, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def lines_until(command: str, last: str) -> list[str]:
    """What an emulator prints until a line that begins with ``last``; then it is ended."""
    process = subprocess.Popen(
        ["bash", "-c", f"exec {command}"], cwd=root(), env=ENV, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    lines: list[str] = []
    try:
        end = time.monotonic() + PATIENCE_S
        for line in process.stdout:
            lines.append(line.strip())
            if line.startswith(last):
                return lines
            assert time.monotonic() < end, lines
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    pytest.fail(f"it ended with {lines}")


def test_an_application_without_a_host_learns() -> None:
    *build, start = commands(root() / "examples" / "standalone" / "README.md", "# An application without a host")
    assert len(build) == 3 and start.startswith("qemu-system-arm")
    for command in build:
        run(command, root())
    lines = lines_until(start, "done")
    correct = [int(line.rpartition(" ")[2]) for line in lines if line.startswith("predicted before learning, of 100:")]
    assert len(correct) == 4, lines
    assert correct[0] < 60 and correct[-1] > 80 and correct[-1] > correct[0] + 30


def test_the_application_is_short() -> None:
    code = (root() / "examples" / "standalone" / "main.c").read_text(encoding="utf-8").splitlines()
    assert sum(bool(line.strip()) and not line.strip().startswith("//") for line in code) <= 35


def test_the_commands_of_the_readme(tmp_path: Path) -> None:
    """With this repository's model and made-up data under the names that the README uses."""
    shutil.copy(MODEL, tmp_path / "model.tflite")
    write_motions(tmp_path / "new.npz", 14, 1)
    write_motions(tmp_path / "held_out.npz", 14, 2)
    install, *quickstart = commands(root() / "README.md", "## Your own model, your own data")
    assert install.startswith("pip install .")
    assert [command.split()[1] for command in quickstart] == ["doctor", "inspect", "plan", "train", "bench", "check"]
    said = [run(command, tmp_path) for command in quickstart]
    assert "board qemu-mps2-an386 can run" in said[0]
    assert "conv_3" in said[1] and "RAM in all" in said[2]
    assert "instructions a step (emulated)" in said[3] and "14 held-out samples" in said[3]
    assert "instructions (emulated)" in said[4]
    assert "qemu-mps2-an386 equals the reference bit for bit" in said[5]
    assert {p.name for p in tmp_path.glob("trained.*")} == {"trained.tflite", "trained.ckpt", "trained.jsonl", "trained.svg"}
