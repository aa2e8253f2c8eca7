"""Every command that documents and messages name exists, with its options."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from bedrock.cli.app import bedrock

from tests.documents.pages import ROOT

PAGES = [ROOT / "README.md", ROOT / "clients" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SOURCES = [path for name in ("actors", "server", "clients/bedrock") for path in sorted((ROOT / name).rglob("*.py"))]
BLOCK = re.compile(r"^```(?:sh|bash)?\n(.*?)^```", re.DOTALL | re.MULTILINE)
IN_BLOCK = re.compile(
    r"(?:^|[|;&(]\s?|\$ )(?:[A-Z_]+=\S+ )*(?:/opt/bedrock/bin/)?bedrock (?!ready on)(.+)", re.MULTILINE
)
QUOTED = re.compile(r"`bedrock (?!ready on)([a-z-][^`{}]*)`")
"""All but the line with which a server says that it is ready."""
ENDS = {"|", ">", "<", "&&", "||", ";", "&", "--"}
"""Words that end the options of a command."""


def named(text: str) -> Iterator[str]:
    """Yield what follows `bedrock` in quotes, and in the blocks of a document."""
    yield from QUOTED.findall(text)
    for block in BLOCK.findall(text):
        yield from IN_BLOCK.findall(block.replace("\\\n", " "))


def words_of(command: str) -> list[str]:
    try:
        return shlex.split(command, comments=True)
    except ValueError:  # a quotation mark that is not closed: the end is on another line
        return command.split()


def unknown(command: str) -> str:
    """Return the first word of a command that the program does not know; empty if it knows all."""
    context = click.Context(bedrock, info_name="bedrock")
    for word in words_of(command):
        if word in ENDS:
            break
        group = context.command
        if isinstance(group, click.Group):
            if (command_found := group.get_command(context, word)) is not None:
                context = click.Context(command_found, info_name=word, parent=context)
            elif re.fullmatch(r"[a-z]+", word) and (group is bedrock or not group.invoke_without_command):
                return word
        if word.startswith("-") and not knows(context, word.partition("=")[0]):
            return word
    return ""


def knows(context: click.Context, option: str) -> bool:
    options = {name for each in context.command.get_params(context) for name in (*each.opts, *each.secondary_opts)}
    return option in options or (not option.startswith("--") and option[:2] in options) or not option.strip("-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_of_a_document_exist(page: Path) -> None:
    assert {command: word for command in named(page.read_text()) if (word := unknown(command))} == {}


def test_commands_that_programs_advise_exist() -> None:
    found = {(path.name, command) for path in SOURCES for command in QUOTED.findall(path.read_text())}
    assert len(found) > 50
    assert {command: unknown(command[1]) for command in found if unknown(command[1])} == {}


@pytest.mark.parametrize(
    ("command", "word"), [("shwo NAME", "shwo"), ("config show", "show"), ("list --json | head", "--json"), ("ls", "")]
)
def test_what_does_not_exist_is_found(command: str, word: str) -> None:
    assert unknown(command) == word
