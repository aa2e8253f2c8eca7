"""What comments and docstrings cite is in this repository."""

import ast
import functools
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.documents.pages import ROOT

FOLDERS = ("actors", "server", "clients/bedrock", "tests")
CODE = re.compile(r"\b(?:[CISP][1-9]\d?|REQ-BED-\d{3})\b")
"""A rule, invariant or requirement."""
RULE = re.compile(r"^\| ([CISP][1-9]\d?) \|", re.MULTILINE)
REQUIREMENT = re.compile(r"^\| (\d{3}) \|", re.MULTILINE)
REQUIREMENTS = ROOT / "docs" / "requirements.md"
ELSEWHERE = re.compile(r"\b(?:SEMANTICS|ARCHITECTURE|HOUSE|SPEC)\b|(?<!RFC \d{4} )§")
"""A document, or a section of one, that is not here."""


def prose(source: str) -> Iterator[tuple[int, str]]:
    """Yield the comments and docstrings of a module, those of its constants too, with their lines."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def files(folder: str) -> list[Path]:
    return [
        file
        for file in sorted((ROOT / folder).rglob("*.py"))
        if "v1" not in file.parts and file.name != "test_references.py"
    ]


@functools.cache
def cited(folder: str) -> list[tuple[str, str]]:
    """Return the comments and docstrings of the files of a folder that cite anything, each with its place."""
    sources = {file.relative_to(ROOT): file.read_text(encoding="utf-8") for file in files(folder)}
    citing = {file: source for file, source in sources.items() if CODE.search(source) or ELSEWHERE.search(source)}
    return [(f"{file}:{line}", text) for file, source in citing.items() for line, text in prose(source)]


def defined() -> set[str]:
    """Return the codes that begin a row of a table in docs/."""
    rules = {code for page in (ROOT / "docs").rglob("*.md") for code in RULE.findall(page.read_text(encoding="utf-8"))}
    return rules | {f"REQ-BED-{number}" for number in REQUIREMENT.findall(REQUIREMENTS.read_text(encoding="utf-8"))}


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_code_that_is_cited_is_defined(folder: str) -> None:
    known = defined()
    unknown = [f"{place}: {code}" for place, text in cited(folder) for code in CODE.findall(text) if code not in known]
    assert unknown == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_document_is_cited_that_is_elsewhere(folder: str) -> None:
    assert [f"{place}: {found[0]}" for place, text in cited(folder) if (found := ELSEWHERE.search(text))] == []
