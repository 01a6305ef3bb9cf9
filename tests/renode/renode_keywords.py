"""Renode's Robot keywords that our suite uses, with the arguments that they take (1.16.1), for a dry run without Renode."""

from __future__ import annotations


def execute_command(command: str, machine: str | None = None) -> str:
    raise NotImplementedError


def create_terminal_tester(
    uart: str,
    timeout: float | None = None,
    machine: str | None = None,
    endLineOption: str | None = None,
    defaultPauseEmulation: bool | None = None,
    defaultWaitForEcho: bool | None = None,
    defaultMatchNextLine: bool | None = None,
    binaryMode: bool = False,
) -> int:
    raise NotImplementedError


def start_emulation() -> None:
    raise NotImplementedError


def wait_for_bytes_on_uart(
    content: str,
    timeout: float | None = None,
    testerId: int | None = None,
    treatAsRegex: bool = False,
    pauseEmulation: bool | None = None,
    matchStart: bool | None = False,
) -> object:
    raise NotImplementedError
