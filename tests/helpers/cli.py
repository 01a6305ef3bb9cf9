"""The command line as a user meets it: in this process (fast, can be patched), or as a process of its own (signals, PATH)."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from mcugrad.cli import main

HEED_CTRL_C = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
"""A shell starts what it puts into the background with Ctrl-C ignored, and so would tests that run there."""

MCUGRAD = (sys.executable, "-c", f"{HEED_CTRL_C}\nfrom mcugrad.cli import main; main()")


@dataclass(frozen=True, slots=True)
class Done:
    """What a command left: exit code, standard output, standard error."""

    code: int
    out: str
    err: str

    @property
    def object(self) -> dict[str, Any]:
        """The one JSON object of --json, read strictly: NaN and a second object are errors."""
        found: dict[str, Any] = json.loads(self.out, parse_constant=_no_such_constant)
        assert {"schema", "status"} <= set(found) and ("result" in found) != ("error" in found)
        return found

    @property
    def result(self) -> dict[str, Any]:
        """``result`` of a command that went well."""
        assert self.code == 0, self.err or self.out
        assert self.object["status"] == "ok"
        found: dict[str, Any] = self.object["result"]
        return found

    def fails(self, code: int, *texts: str) -> None:
        """Require this exit code, nothing but one line on standard error, and each of ``texts`` (patterns) in that line."""
        assert self.code == code, f"exit code {self.code}, not {code}: {self.err}{self.out}"
        assert self.err.count("\n") == 1 and self.err.endswith("\n"), self.err
        assert "Traceback" not in self.err
        for text in texts:
            assert re.search(text, self.err), f"{text!r} is not in {self.err!r}"


def _no_such_constant(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def mcugrad(*arguments: str | Path | float) -> Done:
    """Run a command in this process."""
    out, err = io.StringIO(), io.StringIO()
    argv = ["mcugrad", *map(str, arguments)]
    with mock.patch.object(sys, "argv", argv), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
            code: object = 0
        except SystemExit as e:
            code = e.code or 0
    assert isinstance(code, int)
    return Done(code, out.getvalue(), err.getvalue())


def started(*arguments: str | Path | float, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """Start a command as a process that leads a process group, as a shell starts it: Ctrl-C goes to the group."""
    return subprocess.Popen(
        [*MCUGRAD, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(env or {})},
        start_new_session=True,
    )


def finished(process: subprocess.Popen[str], timeout_s: float = 60.0) -> Done:
    """Wait for a started command."""
    out, err = process.communicate(timeout=timeout_s)
    return Done(process.returncode, out, err)
