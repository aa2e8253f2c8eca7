"""The flows that docs/architecture.md draws are those of the code: each module defines what a module before it uses."""

import ast
import functools
import re
from typing import NamedTuple

import pytest

from tests.documents.pages import ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
_FLOW = re.compile(r"^\*\*([^*\n]+)\*\*\n\n<!-- flow -->\n```\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Stop(NamedTuple):
    """A module that a flow passes, and the name through which control enters it."""

    path: str
    name: str


class Names(NamedTuple):
    """The names that a module defines (functions, classes, attributes), and all names that occur in it."""

    defined: frozenset[str]
    used: frozenset[str]


FLOWS = {title: [Stop(*line.split()[:2]) for line in drawn.splitlines()] for title, drawn in _FLOW.findall(PAGE)}
RECORDED = [Stop(*found) for found in re.findall(r"^  (\S+\.py) +(\w+)", PAGE, re.MULTILINE)]
"""What is drawn from a recording, on which the other flows go on."""
EVERY_FLOW = pytest.mark.parametrize("flow", FLOWS.values(), ids=FLOWS)


@functools.cache
def names(path: str) -> Names:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    defined = {node.name for node in ast.walk(tree) if isinstance(node, kinds)}
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    defined |= {node.attr for node in attributes if isinstance(node.ctx, ast.Store)}
    used = {node.attr for node in attributes} | {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return Names(frozenset(defined), frozenset(used))


def test_all_flows_are_drawn() -> None:
    assert RECORDED
    assert len(FLOWS) == PAGE.count("<!-- flow -->") == 5


@EVERY_FLOW
def test_no_module_is_passed_twice(flow: list[Stop]) -> None:
    paths = [stop.path for stop in flow]
    assert len(paths) == len(set(paths))


@EVERY_FLOW
def test_a_module_defines_the_name_by_which_it_is_entered(flow: list[Stop]) -> None:
    assert not [stop for stop in flow if stop.name not in names(stop.path).defined]


@EVERY_FLOW
def test_a_module_before_it_uses_that_name(flow: list[Stop]) -> None:
    """One before it in its flow, or in a flow above, since what flows share is drawn once."""
    flows = list(FLOWS.values())
    above = [*RECORDED, *(stop for other in flows[: flows.index(flow)] for stop in other)]
    unused = [
        stop
        for number, stop in enumerate(flow[1:], 1)
        if not any(stop.name in names(before.path).used for before in [*above, *flow[:number]])
    ]
    assert not unused
