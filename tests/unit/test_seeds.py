"""docs/seeds.md holds: every name that the seeds use has its row, and every row points to what exists.

`seeds/` has the seeds' own words, copied: names are taken out of them here, so none can be forgotten in the table, and
none can be in the table that no seed has.
"""

import importlib
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from actors.adapters.tools.registry import StandardToolbox
from actors.core.effects import NotifyClient
from actors.core.notifications import Notification, RunStop, StopReason
from tests.documents.pages import ROOT, SEEDS, named_tests, section, table

PAGE = SEEDS.read_text(encoding="utf-8")
EXCERPTS = Path(__file__).parent / "seeds"
NOT_YET = "not yet"

Row = tuple[str, str, str]


def excerpt(name: str) -> str:
    return (EXCERPTS / f"{name}.txt").read_text(encoding="utf-8")


# --- the names in the seeds' words ------------------------------------------------------------------------------------


def clauses() -> Iterator[str]:
    """Every WHEN of seed 1 under its requirement; of seed 5 the requirements that seed 1 does not have."""
    requirement = ""
    for line in excerpt("1_requirements").splitlines():
        if found := re.match(r"### (REQ-BED-\d+)", line):
            requirement = found[1]
        elif line.startswith("WHEN "):
            yield f"{requirement} {line}"
    for number, title in re.findall(r"\*\*(REQ-BED-\d+):\*\* (.*?) \|", excerpt("5_requirements")):
        if number > "REQ-BED-013":
            yield f"{number} {title}"


def without_comments(code: str) -> str:
    return re.sub(r"//.*", "", code)


def enums_and_structs(code: str) -> Iterator[str]:
    """`Enum::Variant`, `Enum::Variant.field` and `Struct.field`."""
    for kind, name, body in re.findall(
        r"^(enum|struct) (\w+) \{\n(.*?)^\}", without_comments(code), re.MULTILINE | re.DOTALL
    ):
        if kind == "struct":
            yield from (f"{name}.{field}" for field in re.findall(r"(\w+)\s*:", body))
            continue
        for variant, fields in re.findall(r"(\w+)\s*(?:\{(.*?)\})?\s*,", body, re.DOTALL):
            yield f"{name}::{variant}"
            yield from (f"{name}::{variant}.{field}" for field in re.findall(r"(\w+)\s*:", fields))


def transition_names() -> Iterator[str]:
    code = excerpt("2_transition")
    yield from re.findall(r"fn (\w+)\(", code)
    yield from re.findall(r"Result<\w+, (\w+)>", code)
    yield from enums_and_structs(code)


def types() -> Iterator[str]:
    """The types of fields that are no Rust built-ins."""
    of_rust = {"String", "Vec", "Option", "Value", "Duration", "PathBuf"}
    for name in ("2_states", "2_events", "2_effects", "2_transition"):
        for type_name in re.findall(r":\s*&?([\w<>]+)", without_comments(excerpt(name))):
            yield from (word for word in re.findall(r"[A-Z]\w+", type_name) if word not in of_rust)


def scenarios() -> Iterator[str]:
    """The comments above the examples of what a transition does, and the result that one of them makes."""
    code = excerpt("2_scenarios")
    yield from re.findall(r"^// (.*)", code, re.MULTILINE)
    yield from re.findall(r"ToolResult::\w+", code)


def matrix_events() -> Iterator[str]:
    lines = (EXCERPTS.parent / "core" / "seed_matrix.md").read_text(encoding="utf-8").splitlines()
    return (re.split(r"(?<=.)[({]", line.split("|")[2].strip())[0] for line in lines[2:])


def sub_agent_names() -> Iterator[str]:
    code = excerpt("2_sub_agent_tools")
    yield from re.findall(r"struct (\w+);", code)
    schema = seed_schema()
    yield from (f"submit_result.{name}" for name in schema["properties"])
    yield from re.findall(r"ToolResult::\w+", code)
    yield from re.findall(r"\w+_tool(?=\(\))", code)
    yield from re.findall(r"NO (\w+) tool", code)


def seed_schema() -> Any:
    found = re.search(r"json!\((\{.*?\n        \})\)", excerpt("2_sub_agent_tools"), re.DOTALL)
    assert found
    return json.loads(found[1])


def columns() -> Iterator[str]:
    for name, body in re.findall(r"CREATE TABLE (\w+) \((.*?)^\);", excerpt("2_schema"), re.MULTILINE | re.DOTALL):
        yield from (f"{name}.{column}" for column in re.findall(r"^ {4}([a-z_]+) [A-Z]", body, re.MULTILINE))


def loop_steps() -> Iterator[str]:
    code = excerpt("2_event_loop")
    yield from re.findall(r"impl (\w+)", code)
    yield from re.findall(r"// (.*)", code)
    yield from re.findall(r"state\.(\w+)\(", code)


def wanted_tests() -> Iterator[str]:
    text = excerpt("2_tests")
    yield from re.findall(r"fn (\w+)\(", text)
    yield from re.findall(r"^- (.*)", text, re.MULTILINE)


def files() -> Iterator[str]:
    """Every path of the tree."""
    folders: list[str] = []
    for line in excerpt("2_files").splitlines():
        bare = re.sub(r"#.*", "", line).rstrip()
        depth = len(re.match(r"[│├└─ ]*", bare)[0]) // 4  # type: ignore[index]
        name = re.sub(r"^[│├└─ ]*", "", bare)
        folders[depth:] = [name]
        if depth:
            yield "".join(folders)


def context_manager() -> Iterator[str]:
    text = excerpt("3_context_manager")
    yield from re.findall(r"^-   \*\*`?(\w[\w ]*?)`?\*\*:", text, re.MULTILINE)
    yield from ("ContextState", "ChatContext", "handle_event", "reqwest-sse", "[DONE]")
    assert all(f"`{name}`" in text for name in ("ContextState", "ChatContext", "handle_event", "reqwest-sse", "[DONE]"))


def request_cycles() -> Iterator[str]:
    text = excerpt("4_request_cycles")
    yield from re.findall(r"`([\w-]+)`", text)
    yield from re.findall(r"\*\*([\w ]+)\*\*", text)
    yield from re.findall(r"^### [\d.]+ (\w+ View)", text, re.MULTILINE)
    construction = text[text.index("## 7.") :]
    yield from (f"step {number}" for number in re.findall(r"^(\d)\.", construction, re.MULTILINE))


SECTIONS: dict[str, Callable[[], Iterator[str]]] = {
    "## Requirements (seeds 1 and 5)": clauses,
    "## States (seed 2)": lambda: enums_and_structs(excerpt("2_states")),
    "## Events (seed 2)": lambda: enums_and_structs(excerpt("2_events")),
    "## Effects (seed 2)": lambda: enums_and_structs(excerpt("2_effects")),
    "## Transition function (seed 2)": transition_names,
    "## Types (seed 2)": types,
    "## Scenarios (seed 2)": scenarios,
    "## State Transition Matrix (seed 2)": matrix_events,
    "## Sub-agent tools (seed 2)": sub_agent_names,
    "## Database schema (seed 2)": columns,
    "## Runtime event loop (seed 2)": loop_steps,
    "## Tests (seed 2)": wanted_tests,
    "## Files (seed 2)": files,
    "## Context Manager FSM (seed 3)": context_manager,
    "## Request Cycle Model (seed 4)": request_cycles,
}


def rows_of(heading: str) -> list[Row]:
    return [(name.strip("`"), where, proof) for name, where, proof in table(section(PAGE, heading))]


EVERY_SECTION = pytest.mark.parametrize("heading", SECTIONS, ids=lambda heading: heading.strip("# "))


# --- the table --------------------------------------------------------------------------------------------------------


@EVERY_SECTION
def test_every_name_of_the_seeds_has_one_row_and_every_row_a_name(heading: str) -> None:
    named = list(dict.fromkeys(SECTIONS[heading]()))
    assert named, "nothing was found in the seed's words"
    assert sorted(name for name, _, _ in rows_of(heading)) == sorted(named)


def test_the_seeds_words_have_as_many_names_as_were_counted_by_hand() -> None:
    counts = {name.strip("# ").split(" (")[0]: len(set(names())) for name, names in SECTIONS.items()}
    assert counts == {
        "Requirements": 35 + 11,
        "States": 7 + 9 + 5,
        "Events": 8 + 12,
        "Effects": 7 + 15,
        "Transition function": 2 + 2 + 4,
        "Types": 14,
        "Scenarios": 9 + 1,
        "State Transition Matrix": 9,
        "Sub-agent tools": 1 + 2 + 1 + 5 + 1,
        "Database schema": 11 + 9,
        "Runtime event loop": 1 + 4 + 1,
        "Tests": 2 + 5,
        "Files": 29,
        "Context Manager FSM": 11 + 5 + 5,
        "Request Cycle Model": 38,
    }


@EVERY_SECTION
def test_what_a_row_points_to_is_there(heading: str) -> None:
    for name, where, _ in rows_of(heading):
        tokens = re.findall(r"`([^`]+)`", where)
        missing = [token for token in tokens if is_ours(token) and not exists(token)]
        assert not missing, f"{name}: there is no {missing}"
        assert any(map(is_ours, tokens)) or where.startswith(NOT_YET), f"{name} is nowhere"


@EVERY_SECTION
def test_every_row_names_tests_that_exist(heading: str) -> None:
    for name, _, proof in rows_of(heading):
        links = re.findall(r"\[([^\]]+)\]\(\.\./([^)]+)\)", proof)
        assert links, f"nothing proves {name}"
        missing = [(test, path) for test, path in links if test not in named_tests(ROOT / path)]
        assert not missing, f"{name}: there is no {missing}"


def is_ours(token: str) -> bool:
    """Whether it names a module, an attribute of one, or a file."""
    return bool(re.fullmatch(r"(actors|server|bedrock)(\.\w+)+", token)) or "/" in token or token == "pyproject.toml"


def exists(token: str) -> bool:
    """Whether the file is there, or modules and attributes lead to the name."""
    if not re.fullmatch(r"\w+(\.\w+)+", token) or token == "pyproject.toml":
        return (ROOT / token).exists()
    parts = token.split(".")
    for end in range(len(parts), 0, -1):
        try:
            thing: Any = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        return _leads_on(thing, parts[end:]) and not (end < len(parts) and _is_imported(thing, parts[end]))
    return False


def _is_imported(module: Any, name: str) -> bool:
    """A reader looks for a name where it is defined, or in the package."""
    thing = getattr(module, name, None)
    return getattr(thing, "__name__", "") == name and not thing.__module__.startswith(module.__name__)


def _leads_on(thing: Any, attributes: list[str]) -> bool:
    for name in attributes:
        if not hasattr(thing, name):
            return False
        thing = getattr(thing, name)
    return True


def test_a_notification_is_named_by_its_tag() -> None:
    """NotifyClient's event_type, which is a field in the seed."""
    kinds = get_args(Notification)
    told = NotifyClient(RunStop("c:1", StopReason.COMPLETED))
    assert told.event_type == "run_stop"
    assert len({kind.__struct_config__.tag for kind in kinds}) == len(kinds)


# --- what the seeds say of the sub-agents' tools ----------------------------------------------------------------------


def test_submit_result_has_the_schema_in_the_seeds_words() -> None:
    (spec,) = (spec for spec in StandardToolbox().specs(sub_agent=True) if spec.name == "submit_result")
    assert spec.input_schema == seed_schema()


def test_sub_agents_are_offered_the_seeds_list_but_for_what_its_rows_call_not_yet_there() -> None:
    heading = "## Sub-agent tools (seed 2)"
    listed = {name.removesuffix("_tool") for name in re.findall(r"\w+_tool(?=\(\))", excerpt("2_sub_agent_tools"))}
    missing = {name.removesuffix("_tool") for name, where, _ in rows_of(heading) if where.startswith(NOT_YET)}
    offered = {spec.name for spec in StandardToolbox().specs(sub_agent=True)}
    assert listed - offered == missing
    assert "spawn_sub_agent" not in offered
