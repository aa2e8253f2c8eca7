"""The documents as the tests read them: fenced blocks, tables, links, and the tests that they name."""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
SEEDS = ROOT / "docs" / "seeds.md"
API_GUIDE = tuple(
    ROOT / "docs" / "api" / f"{name}.md" for name in ("README", "connect", "conversations", "streams", "errors")
)
"""The pages about the API by task, in the order in which they are to be read."""
PAGES = (
    README,
    ROOT / "CHANGELOG.md",
    ROOT / "SECURITY.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "tests" / "README.md",
    ROOT / "tests" / "peers" / "README.md",
    ROOT / "clients" / "README.md",
    ROOT / "clients" / "node" / "README.md",
    ROOT / "actors" / "core" / "README.md",
)
"""Everything that is written for people to read."""

_FENCE = re.compile(r"^```.*?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[([^\]]+)\]\(([^)\s]+)\)")
_RULE = re.compile(r"\|[\s|:-]+\|")


class Link(NamedTuple):
    """A link, and where it stands."""

    page: Path
    text: str
    target: str

    @property
    def file(self) -> Path:
        """What it points to, without the part behind "#"."""
        path = self.target.partition("#")[0]
        return (self.page.parent / path).resolve() if path else self.page

    @property
    def fragment(self) -> str:
        """What is behind "#"."""
        return self.target.partition("#")[2]

    @property
    def local(self) -> bool:
        """Whether it points into this repository."""
        return "://" not in self.target and not self.target.startswith(("#", "mailto:"))


def fenced(page: str, marker: str) -> str:
    """The content of the first fenced block behind `<!-- marker -->`."""
    start, end = _place(page, marker)
    return page[start:end]


def code(page: str, language: str) -> list[str]:
    """The content of every fenced block of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def _place(page: str, marker: str) -> tuple[int, int]:
    comment = f"<!-- {marker} -->"
    assert page.count(comment) == 1, f"not once: {comment}"
    block = _FENCE.search(page, page.index(comment))
    assert block, f"no block behind {comment}"
    return block.span(1)


def section(page: str, heading: str) -> str:
    """What stands under a heading, up to the next one of its level or above."""
    level = len(heading) - len(heading.lstrip("#"))
    _, found, rest = f"\n{page}".partition(f"\n{heading}\n")
    assert found, f"no heading {heading!r}"
    return re.split(rf"^#{{1,{level}}} ", rest, maxsplit=1, flags=re.MULTILINE)[0]


def table(text: str) -> list[tuple[str, ...]]:
    """The rows of every table in the text, without their heads. A cell may hold an escaped pipe."""
    rows: list[tuple[str, ...]] = []
    for line in text.splitlines():
        if not line.startswith("|"):
            continue
        if _RULE.fullmatch(line):
            rows.pop()
            continue
        cells = re.split(r"(?<!\\)\|", line.strip("|"))
        rows.append(tuple(cell.strip().replace("\\|", "|") for cell in cells))
    return rows


def links(page: Path) -> Iterator[Link]:
    """The links of a page, code left out."""
    text = re.sub(r"`[^`\n]*`(?!\])", "", _FENCE.sub("", page.read_text(encoding="utf-8")))
    for found in _LINK.finditer(text):
        yield Link(page, found[1].strip("`"), found[2])


def anchor(heading: str) -> str:
    """What a heading can be linked to by, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@functools.cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors of a page's headings."""
    return frozenset(
        map(anchor, re.findall(r"^#+ (.+)$", _FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE))
    )


@functools.cache
def named_tests(file: Path) -> frozenset[str]:
    """The names of the test functions of a file."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, kinds) and node.name.startswith("test_"))
