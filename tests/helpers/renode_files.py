"""Renode's two kinds of files, as far as ours use them: platform descriptions (.repl) and monitor scripts (.resc).

Written from Renode's documentation ("Platform description format", "Monitor and script syntax"). What is not understood is an error, so
that a file which Renode would refuse is refused here, where there is no Renode.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

NUMBER = r"0x[0-9A-Fa-f]+|\d+"
_ENTRY = re.compile(
    r"(?P<name>[a-z]\w*):(?: (?P<type>[A-Z]\w*(?:\.[A-Z]\w*)+))?(?: @ (?P<where>none|\{[^}]*\}|sysbus(?: (?:0x[0-9A-Fa-f]+))?))?$"
)
_USING = re.compile(r'using "([^"]+)"$')
_VALUE = re.compile(rf"(?P<key>[A-Za-z]\w*): (?P<value>{NUMBER}|\"[^\"]*\"|true|false|[a-z]\w*)$")
_IRQ = re.compile(r"(?P<source>[A-Z]\w*)? ?-> (?P<target>[a-z]\w*)@(?P<number>\d+)$")
_TAG = re.compile(rf'Tag <({NUMBER}), ({NUMBER})> "[^"]+"(?: ({NUMBER}))?$')
_WORD = re.compile(r'\s*(?:("(?:[^"\\]|\\.)*")|(@(?:\\ |[^\s;])+)|(\$[\w.]+)|(\?=|=)|([\w.\-]+(?:/[\w./\-]+)?)|(;))')


class RenodeFileError(Exception):
    """A line that Renode would refuse."""


@dataclass(slots=True)
class Entry:
    """One peripheral. ``type`` is empty where the entry only changes what a file behind ``using`` has made."""

    name: str
    type: str = ""
    where: str = ""
    values: dict[str, str] = field(default_factory=dict)
    interrupts: dict[str, tuple[str, int]] = field(default_factory=dict)
    init: list[str] = field(default_factory=list)

    @property
    def base(self) -> int:
        """Its address; raises RenodeFileError where it has none."""
        found = re.fullmatch(r"sysbus (0x[0-9A-Fa-f]+)", self.where)
        if found is None:
            raise RenodeFileError(f"{self.name} has no address")
        return int(found[1], 16)

    def number(self, key: str) -> int:
        return int(self.values[key], 0)


@dataclass(slots=True)
class Platform:
    """A .repl file: what it builds upon, and its entries."""

    using: list[str]
    entries: dict[str, Entry]

    def memories(self) -> list[tuple[int, int]]:
        """(address, size) of what this file itself declares."""
        return [(e.base, e.number("size")) for e in self.entries.values() if e.type == "Memory.MappedMemory"]


def parse_repl(text: str) -> Platform:
    """Raises RenodeFileError with the line that is wrong."""
    platform = Platform([], {})
    entry: Entry | None = None
    in_init = False
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.split("//")[0].rstrip()
        if not line:
            continue
        indent = len(line) - len(line.lstrip(" "))
        if "\t" in line or indent not in ((0, 4, 8) if in_init else (0, 4)):
            raise RenodeFileError(f"line {number}: indented by {indent}")
        in_init = in_init and indent == 8
        words = line.strip()
        if indent == 0 and (using := _USING.match(words)):
            if platform.entries:
                raise RenodeFileError(f"line {number}: using comes before all entries")
            platform.using.append(using[1])
        elif indent == 0 and (head := _ENTRY.match(words)):
            entry = Entry(head["name"], head["type"] or "", head["where"] or "")
            if entry.name in platform.entries or not (entry.type or platform.using or entry.name == "sysbus"):
                raise RenodeFileError(f"line {number}: {entry.name} is declared twice, or nowhere")
            platform.entries[entry.name] = entry
        elif entry is not None and indent == 4 and words == "init:":
            in_init = True
        elif entry is not None and indent == 4 and (value := _VALUE.match(words)):
            entry.values[value["key"]] = value["value"]
        elif entry is not None and indent == 4 and (irq := _IRQ.match(words)):
            entry.interrupts[irq["source"] or ""] = (irq["target"], int(irq["number"]))
        elif entry is not None and indent == 8 and _TAG.match(words):
            entry.init.append(words)
        else:
            raise RenodeFileError(f"line {number}: {line}")
    return platform


def parse_resc(text: str) -> list[list[str]]:
    """The commands of a monitor script, each as its words; a macro is one command whose last word is its body."""
    commands: list[list[str]] = []
    lines = iter(text.splitlines())
    for raw in lines:
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        words = words_of(line)
        if words[0] == "macro":
            if next(lines, "").strip() != '"""':
                raise RenodeFileError("a macro's body stands between lines of three quotes")
            body = []
            for inner in lines:
                if inner.strip() == '"""':
                    break
                body.append(inner.strip())
            else:
                raise RenodeFileError("a macro without an end")
            words.append("\n".join(body))
        commands.append(words)
    return commands


def words_of(line: str) -> list[str]:
    """The words of one command, as Renode's tokenizer sees them: text, @path, $variable, = or ?=, everything else."""
    words, at = [], 0
    while at < len(line):
        found = _WORD.match(line, at)
        if found is None:
            if words and words[-1].startswith("$") and line[at] == "/":  # $ORIGIN/file
                rest = line[at:].split(maxsplit=1)[0]
                words[-1] += rest
                at += len(rest)
                continue
            raise RenodeFileError(f"could not tokenize {line!r} at {at}")
        words.append(found[0].strip())
        at = found.end()
        if line[at:].strip() == "":
            break
    return words


def read_repl(path: Path) -> Platform:
    return parse_repl(path.read_text(encoding="utf-8"))
