"""How pages are read and followed: in order, with nothing passed over, and failing where they do not tell the truth."""

from __future__ import annotations

from pathlib import Path

import pytest
from documented import NotRunnable, Page, named_commands, shape, unknown_word
from reader import REPOSITORY, Reader

PAGE = """# A

```console
$ nearcast up --brokers 2
starting
$ nearcast brokers  # all
```

```text
x
```
"""


def test_blocks_are_read_in_order_with_their_commands() -> None:
    page = Page(PAGE)
    assert [(block.language, block.line) for block in page.blocks] == [("console", 3), ("text", 9)]
    up, brokers = page.commands
    assert (up.text, up.output, up.line, up.runs_until_stopped) == ("nearcast up --brokers 2", "starting\n", 4, True)
    assert (brokers.words, brokers.output, brokers.line) == (["nearcast", "brokers"], "", 6)


@pytest.mark.parametrize(
    "text",
    [
        "```\nnearcast brokers\n```\n",
        "```shell\nnearcast brokers\n```\n",
        "```console\nnearcast brokers\n```\n",
        "So:\n\n    nearcast brokers\n",
    ],
)
def test_a_block_that_nothing_would_run_is_refused(text: str) -> None:
    with pytest.raises(NotRunnable):
        _ = Page(text).commands


@pytest.mark.parametrize(
    "block",
    [
        "console\n$ rm notes",
        "console\n$ nearcast fly",
        "console\n$ nearcast --help\nno help",
        "sql\nSELECT 1",
        "python\n1/0",
    ],
)
def test_a_block_that_does_not_do_what_it_says_fails(block: str, tmp_path: Path) -> None:
    with Reader(tmp_path) as reader, pytest.raises((NotRunnable, AssertionError)):
        reader.follow(Page(f"```{block}\n```\n"))


def test_an_address_that_a_page_does_not_have_any_more_is_told() -> None:
    with pytest.raises(NotRunnable, match="does not say"):
        Page("# A\n", {"7400": "17400"})


def test_output_is_compared_without_numbers_and_widths() -> None:
    assert shape("a   12.5   b1\n────\n") == shape("a 7 b3\n──\n")
    assert shape("state   settled\n") != shape("state   moving\n")


def test_words_that_prose_has_and_the_program_has_not_are_found() -> None:
    text = "See `nearcast topic\nmove t --to b1`, `nearcast topics`, `nearcast up --bokers 3` and `make test`."
    moved, topics, brokers, _ = named_commands(text)
    assert [unknown_word(named) for named in (moved, topics, brokers)] == ["", "topics", "--bokers"]


@pytest.mark.parametrize("page", ["README.md", "docs/data.md"])
def test_commands_that_a_page_names_are_there(page: str) -> None:
    named = named_commands((REPOSITORY / page).read_text(encoding="utf-8"))
    assert named
    targets = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    for command in named:
        program, first, *_ = command.split()
        assert f"\n{first}:" in targets if program == "make" else not unknown_word(command), command
