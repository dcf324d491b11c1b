"""A page of the documentation as something to run: its blocks in order, and the commands that its prose names.

The language of a block says what it is, and each is run or is output:

    console   lines after `$ ` are commands, the lines below a command what it prints
    python    a program, or a part of one that awaits at its top level
    sql       the text of a channel, in a file that is called like the channel
    text      what a program printed
    mermaid   a picture

A block of any other kind, or one that is only indented, is refused: so nothing on a page is passed over.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from typer.main import get_command

from nearcast.cli.app import app

LANGUAGES = ("console", "python", "sql", "text", "mermaid")
PROMPT = "$ "

_FENCE = re.compile(r"^```(\S*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?:\A|\n)\n(?: {4}|\t)(?! *[-*\d])(\S[^\n]*)")
_SPAN = re.compile(r"`(nearcast\s[^`]+|make\s[^`]+)`")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_RULE = re.compile(r"─+")


class NotRunnable(Exception):
    """A block that no test could run: says where it is and what to write instead."""


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    line: int


@dataclass(frozen=True)
class Command:
    """One command, and what the page says it prints; nothing if the page does not say it."""

    text: str
    output: str
    line: int

    @property
    def words(self) -> list[str]:
        return shlex.split(self.text, comments=True)

    @property
    def runs_until_stopped(self) -> bool:
        return re.match(r"nearcast (up|agent|controller|data) --", self.text) is not None


class Page:
    """The text of a page, with the addresses in it replaced by those of this run."""

    def __init__(self, text: str, here: Mapping[str, str] | None = None) -> None:
        for written, meant in (here or {}).items():
            if written not in text:
                raise NotRunnable(f"the page does not say {written!r} any more, which a test replaces by {meant!r}")
            text = text.replace(written, meant)
        self.text = text
        self.blocks = list(blocks_of(text))

    @classmethod
    def read(cls, path: Path, here: Mapping[str, str] | None = None) -> Page:
        return cls(path.read_text(encoding="utf-8"), here)

    @property
    def commands(self) -> list[Command]:
        return [command for block in self.blocks if block.language == "console" for command in commands_of(block)]

    def texts(self, language: str) -> list[str]:
        return [block.text for block in self.blocks if block.language == language]


def blocks_of(text: str) -> Iterator[Block]:
    for found in _FENCE.finditer(text):
        line = text.count("\n", 0, found.start()) + 1
        if found[1] not in LANGUAGES:
            raise NotRunnable(f"line {line}: a block of {found[1] or 'no language'}: use one of {', '.join(LANGUAGES)}")
        yield Block(found[1], found[2], line)
    if indented := _INDENTED.search(_FENCE.sub("", text)):
        raise NotRunnable(f"an indented block ({indented[1]}): use ``` and one of {', '.join(LANGUAGES)}")


def commands_of(block: Block) -> Iterator[Command]:
    before, *parts = re.split(rf"^{re.escape(PROMPT)}", block.text, flags=re.MULTILINE)
    if before or not parts:
        raise NotRunnable(f"line {block.line}: write {PROMPT!r} before each command, or call the block `text`")
    line = block.line + 1
    for part in parts:
        command, _, output = part.partition("\n")
        yield Command(command, output, line)
        line += part.count("\n")


def shape(text: str) -> list[str]:
    """What must be the same in every run: words and columns, not numbers, widths and which server was found."""
    lines = [_RULE.sub("─", _NUMBER.sub("#", line)) for line in text.splitlines() if not line.startswith("using ")]
    return [" ".join(line.split()) for line in lines]


# --- commands that prose names


def named_commands(text: str) -> list[str]:
    """Those between single backquotes, on one line each."""
    return [" ".join(span.split()) for span in _SPAN.findall(_FENCE.sub("", text))]


def unknown_word(named: str) -> str:
    """The first word of a `nearcast` command, or option of it, that there is not; empty if all are there."""
    command = get_command(app)
    for word in shlex.split(named)[1:]:
        subcommands = getattr(command, "commands", {})
        if word.startswith("-"):
            if not any(word in parameter.opts + parameter.secondary_opts for parameter in command.params):
                return word
        elif subcommands:
            if word not in subcommands:
                return word
            command = subcommands[word]
    return ""
