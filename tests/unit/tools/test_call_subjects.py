"""What calls of our tools are about: paths as they are in truth, commands as bash reads them; rules as kept."""

import json
from pathlib import Path
from typing import Any

import pytest

from actors.adapters.tools.registry import StandardToolbox
from actors.core.content import ToolUse
from actors.core.context import Action, ApprovalRule, CallSubject
from actors.ports import InvalidApprovalRuleError

TOOLS = StandardToolbox()


def subject(directory: Path, name: str, **arguments: Any) -> CallSubject:
    return TOOLS.subject(ToolUse("t", name, json.dumps(arguments)), str(directory))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A directory `src` with links out of it and within it, and a directory of keys beside it."""
    real = tmp_path.resolve()
    (real / "src" / "inner").mkdir(parents=True)
    (real / "keys").mkdir()
    (real / "src" / "out").symlink_to(real / "keys")
    (real / "src" / "loop").symlink_to("loop")
    return real


@pytest.mark.parametrize(
    ("path", "real"),
    [
        ("a", "src/a"),
        ("./inner/../a", "src/a"),
        ("../keys/id", "keys/id"),
        ("inner/../../keys/id", "keys/id"),
        ("out/id", "keys/id"),
        ("inner/../out/id", "keys/id"),
        ("out/../src/a", "src/a"),
        ("out/..", ""),
        ("nowhere/../../keys", "keys"),
        ("loop/x", "src/loop/x"),
    ],
)
def test_a_path_is_what_it_is_in_truth(project: Path, path: str, real: str) -> None:
    wanted = (str(project / real) if real else str(project),)

    assert subject(project / "src", "read_file", path=path).paths == wanted
    assert subject(project / "src", "read_file", file_path=path).paths == wanted
    assert subject(project / "src", "search", pattern="x", path=path).trees == wanted


def test_a_tool_without_an_argument_path_has_its_case_or_touches_no_file() -> None:
    """Else no approval rule by path would ever match its calls, not even one that denies."""
    cases = {"bash", "keyword_search", "spawn_sub_agent"}
    without_files = {"think", "request_mode_upgrade", "submit_result", "submit_error"}
    every = {spec.name: spec for sub_agent in (False, True) for spec in TOOLS.specs(sub_agent=sub_agent)}
    pathless = {name for name, spec in every.items() if "path" not in spec.input_schema["properties"]}
    assert pathless == cases | without_files


def test_a_search_reads_a_tree_and_sub_agents_are_given_files(project: Path) -> None:
    (project / ".git").mkdir()
    assert subject(project / "src", "search", pattern="x").trees == (str(project / "src"),)
    assert subject(project / "src", "keyword_search", query="q", search_terms=["x"]).trees == (str(project),)
    tasks = [{"task": "a", "read_first": ["out/id"]}, {"task": "b", "cwd": "out", "read_first": ["../x", "/y"]}]
    read = subject(project / "src", "spawn_sub_agent", tasks=tasks)
    assert read == CallSubject(also_reads=(str(project / "keys" / "id"), str(project / "x"), "/y"))


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("bash", {"peek": "b-1"}),
        ("bash", {"cmd": 5}),
        ("think", {"thoughts": "hm"}),
        ("mcp__jira__comment", {"path": "/etc/passwd"}),
        ("deploy", {"cmd": "rm"}),
    ],
)
def test_of_other_calls_nothing_but_the_tool_is_known(project: Path, name: str, given: dict[str, Any]) -> None:
    assert subject(project, name, **given) == CallSubject()


def test_a_command_is_read_as_it_is_run(project: Path) -> None:
    read = subject(project, "bash", command=" make 'all'; env sh -c 'git push' ")
    assert (read.text, read.opaque) == (" make 'all'; env sh -c 'git push' ", False)
    assert [command.words for command in read.commands] == [("make", "all"), ("env", "sh", "-c", "git push")]
    assert [command.words for command in read.inner] == [("git", "push")]
    assert subject(project, "bash", cmd="$(git push)").opaque


def test_a_rule_is_kept_with_its_words_and_its_real_directory(project: Path) -> None:
    kept = TOOLS.prepared_rule(ApprovalRule("", Action.DENY, path=f"{project}/src/../src/out/"))
    assert kept.path == str(project / "keys")
    kept = TOOLS.prepared_rule(ApprovalRule("", Action.ALLOW, command_prefix=" git  'log' "))
    assert (kept.command_prefix, kept.words) == ("git  'log'", ("git", "log"))
    kept = TOOLS.prepared_rule(ApprovalRule("", Action.ALLOW, command="make 'all'"))
    assert (kept.command, kept.words) == ("make 'all'", ("make", "all"))
    for text in ("a; b", "$(x)", "a $x", "A=1 b", "# nothing"):
        assert TOOLS.prepared_rule(ApprovalRule("", Action.ALLOW, command=text)).words == ()
    assert TOOLS.prepared_rule(ApprovalRule("", Action.DENY, command_prefix="bash")).words == ("bash",)
    with pytest.raises(InvalidApprovalRuleError):
        TOOLS.prepared_rule(ApprovalRule("", Action.ALLOW, path="src"))


@pytest.mark.parametrize(
    ("path", "real"),
    [
        ("a", "src/a"),
        ("out/id", "keys/id"),
        ("out/onwards/id", "keys/onwards/id"),
        ("../keys/onwards", "keys/onwards"),
        ("out/../keys/onwards", "keys/onwards"),
        ("loop/x", "src/loop/x"),
        ("/proc/self/cwd", "/proc/self/cwd"),
    ],
)
def test_links_among_the_files_of_others_are_not_read_for_a_principal(project: Path, path: str, real: str) -> None:
    """Where they lead, and what processes have open, comes back in questions and rules."""
    (project / "keys" / "onwards").symlink_to("/somewhere")
    (project / ".git").mkdir()
    roots, place = (str(project / "src"),), str(project / "src")
    arguments = json.dumps({"path": path, "pattern": "x"})
    assert TOOLS.subject(ToolUse("t", "search", arguments), place, roots).trees == (str(project / real),)
    rule = ApprovalRule("r", Action.ALLOW, path=str(project / "src" / path))
    assert TOOLS.prepared_rule(rule, roots).path == str(project / real)
    below = str(project / "src" / "inner")
    of_words = ToolUse("t", "keyword_search", json.dumps({"query": "x", "search_terms": ["x"]}))
    assert TOOLS.subject(of_words, below, roots).trees == (below,)
    assert TOOLS.subject(of_words, below).trees == (str(project),)
