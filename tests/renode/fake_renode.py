"""A stand-in for `renode`, on PATH in tests: it obeys the monitor scripts that mcugrad writes and runs the image in QEMU.

It knows the commands that our scripts use and refuses all others in Renode's words; like Renode it then stays at its prompt. What it
is started with stands in $FAKE_RENODE_LOG. $FAKE_RENODE makes it fail: dies, hangs, refuses; $FAKE_RENODE_VERSION is what it claims
to be.
"""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import socket
import subprocess
import sys
import time
import tty
from pathlib import Path
from typing import NoReturn

from helpers.renode_files import RenodeFileError, parse_repl, parse_resc, words_of

SHIPPED = {
    "platforms/cpus/stm32f746.repl": ("usart1",),
    "platforms/cpus/stm32f4.repl": ("usart2",),
    "platforms/cpus/nrf52840.repl": ("uart0",),
}


class Refused(Exception):
    """What Renode prints behind "There was an error executing command"."""


class Monitor:
    """Renode's monitor, its one machine and its one terminal."""

    def __init__(self) -> None:
        self.variables: dict[str, str] = {}
        self.macros: dict[str, str] = {}
        self.peripherals: set[str] = set()
        self.machine = self.elf = ""
        self.terminal = self.connected = -1

    def include(self, path: str) -> None:
        file = Path(path)
        if not file.exists():
            raise Refused(f"Could not find file {path}")
        before = self.variables.get("$ORIGIN")
        self.variables["$ORIGIN"] = str(file.parent)
        for command in parse_resc(file.read_text(encoding="utf-8")):
            self.run(command)
        if before:
            self.variables["$ORIGIN"] = before

    def value(self, word: str) -> str:
        if word.startswith("$"):
            name, slash, rest = word.partition("/")
            if name not in self.variables:
                raise Refused(f"No such variable: {name}")
            return self.variables[name] + slash + rest
        return word.removeprefix("@").replace("\\ ", " ").strip('"')

    def run(self, words: list[str]) -> None:
        try:
            self.obey(words)
        except (Refused, RenodeFileError) as e:
            print(f"There was an error executing command '{' '.join(words)}'\n{e}", flush=True)
            wait_for_end()

    def obey(self, words: list[str]) -> None:
        match words:
            case [name, "=" | "?=" as how, value] if name.startswith("$"):
                if how == "=" or name not in self.variables:
                    self.variables[name] = self.value(value)
            case ["include", path]:
                self.include(self.value(path))
            case ["mach", "create", name]:
                self.machine = self.value(name)
            case ["machine", "LoadPlatformDescription", path]:
                self.load(Path(self.value(path)))
            case ["macro", name, body]:
                self.macros[f"${name}"] = body
            case ["runMacro", name]:
                for line in self.macros[name].splitlines():
                    self.run(words_of(line))
            case ["sysbus", "LoadELF", path]:
                self.elf = self.value(path)
                if Path(self.elf).read_bytes()[:4] != b"\x7fELF":
                    raise Refused(f"{self.elf} is no ELF file")
            case ["sysbus.cpu", "VectorTableOffset", address]:
                int(address, 16)
            case ["emulation", "SetGlobalQuantum", seconds]:
                float(self.value(seconds))
            case ["emulation", "SetGlobalAdvanceImmediately", "true"] | ["logLevel", "3"]:
                pass
            case ["emulation", "CreateUartPtyTerminal", _, path, "true"]:
                self.terminal, other = pty.openpty()
                tty.setraw(other)
                os.symlink(os.ttyname(other), self.value(path))
            case ["connector", "Connect", uart, _]:
                if uart not in self.peripherals or self.terminal < 0:
                    raise Refused(f"{uart} is not there")
                self.connected = self.terminal
            case ["start"]:
                self.start()
            case _:
                raise Refused("No such command or device")

    def load(self, path: Path) -> None:
        platform = parse_repl(path.read_text(encoding="utf-8"))
        for used in platform.using:
            if used not in SHIPPED:
                raise Refused(f"Could not find file {used}")
            self.peripherals |= {f"sysbus.{name}" for name in SHIPPED[used]}
        self.peripherals |= {f"sysbus.{entry.name}" for entry in platform.entries.values()}

    def start(self) -> None:
        ours, theirs = socket.socketpair()
        machine = self.machine.removeprefix("renode-")
        command = ["qemu-system-arm", "-M", machine, "-icount", "shift=0", "-nographic", "-monitor", "none", "-nodefaults"]
        command += ["-chardev", f"socket,id=u,fd={theirs.fileno()}", "-serial", "chardev:u", "-kernel", self.elf]
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),)) as emulator:
            theirs.close()
            signal.signal(signal.SIGTERM, lambda *_: (emulator.kill(), os._exit(0)))
            while True:
                readable, _, _ = select.select([ours, self.connected], [], [])
                if ours in readable:
                    data = ours.recv(4096)
                    if not data:
                        break
                    os.write(self.connected, data)
                if self.connected in readable:
                    ours.sendall(os.read(self.connected, 4096))
            emulator.kill()


def wait_for_end() -> NoReturn:
    """At the prompt. Renode does not end where its input does."""
    while True:
        time.sleep(60)


def main(arguments: list[str]) -> None:
    if arguments == ["--version"]:
        print(f"Renode v{os.environ.get('FAKE_RENODE_VERSION', '1.16.1')}.28123\n  build: stand-in")
        return
    how = os.environ.get("FAKE_RENODE", "")
    if log := os.environ.get("FAKE_RENODE_LOG"):
        Path(log).write_text(json.dumps({"arguments": arguments, "pid": os.getpid()}))
    if how == "dies":
        print("Unhandled exception. System.DllNotFoundException: libfoo")
        sys.exit(134)
    if how == "hangs":
        time.sleep(600)
    monitor = Monitor()
    assert arguments[:4] == ["--console", "--disable-xwt", "--plain", "-e"], arguments
    monitor.run(words_of(arguments[4]) if how != "refuses" else ["machine", "LoadSomethingElse"])
    wait_for_end()
