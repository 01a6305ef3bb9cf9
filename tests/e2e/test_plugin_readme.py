"""The test of a user's model in the README, as it stands there: in an empty folder, by the entry point of the package, on two boards."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from xml.etree import ElementTree

import pytest

from helpers.watch import MODEL
from mcugrad.hil.board_map import read_map
from mcugrad.paths import root

SECTION = (root() / "README.md").read_text(encoding="utf-8").partition("## Test your model on a board")[2].partition("\n## ")[0]
LINES = 10


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", SECTION, re.S)
    assert found is not None
    return found[1]


def installed(folder: Path) -> Path:
    """A folder that makes the checkout's entry points known, as an installation of it would."""
    points = tomllib.loads((root() / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]
    info = folder / "mcugrad-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mcugrad\nVersion: 0\n")
    lines = [line for group, entries in points.items() for line in (f"[{group}]", *(f"{name} = {of}" for name, of in entries.items()))]
    (info / "entry_points.txt").write_text("\n".join(lines))
    return folder


def test_it_is_about_ten_lines() -> None:
    assert sum(bool(line.strip()) for line in block("python").splitlines()) <= LINES


@pytest.mark.qemu
def test_it_passes_on_the_host_and_on_an_emulated_board(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "model.tflite").write_bytes(MODEL.read_bytes())
    (empty / "test_my_model.py").write_text(block("python"), encoding="utf-8")
    command = re.search(r"^    pytest (--mcugrad-board .*)$", SECTION, re.M)
    assert command is not None
    environment = {**os.environ, "PYTHONPATH": f"{installed(tmp_path / 'site')}{os.pathsep}{root() / 'host'}"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *command[1].split(), "--mcugrad-board", "host"],
        cwd=empty,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
    cases = list(ElementTree.parse(empty / "report.xml").iter("testcase"))
    found = [{p.attrib["name"]: p.attrib["value"] for p in case.iter("property")} for case in cases]
    assert found == [{"mcugrad_board": name, "mcugrad_outcome": "passed"} for name in ("qemu-mps2-an386", "host")]


def test_the_map_is_a_map(tmp_path: Path) -> None:
    path = tmp_path / "bench.yaml"
    path.write_text(block("yaml"), encoding="utf-8")
    assert read_map(path)["desk"].flash


def test_pytest_and_yaml_are_an_extra() -> None:
    project = tomllib.loads((root() / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    base = " ".join(project["dependencies"])
    assert "pytest" not in base and "yaml" not in base
    assert {re.split(r"\W", d)[0] for d in project["optional-dependencies"]["hil"]} == {"pytest", "pyyaml"}
