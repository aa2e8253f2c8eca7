"""The folders show the architecture: imports form no circle, a folder fits a glance, and a name is given once."""

import ast
import graphlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterator

import grimp
import pytest

from tests.conftest import LONG
from tests.documents.pages import ROOT

SOURCES = {"actors": ROOT / "actors", "server": ROOT / "server", "bedrock": ROOT / "clients" / "bedrock"}
GENERATED = "bedrock/v1"

MOST_MODULES = 12
MORE_MODULES = 18
LARGER = {
    "actors/core",
    "actors/core/steps",
    "actors/adapters/store",
    "actors/adapters/tools",
    "actors/adapters/tools/workers",
    "bedrock/cli/commands",
    "bedrock/cli/display",
}
"""Folders of many modules that are much alike."""

HELPER_LINES = {"unit": 504, "integration": 2_450, "e2e": 393, "property": 2_733, "support": 4_937}
"""How many lines a level of the tests may have beside its tests; `support` has what several levels use."""


def modules(package: str) -> list[str]:
    """Return the modules of a package as paths without suffix: `actors/core/events`."""
    root = SOURCES[package]
    files = (file.relative_to(root.parent).with_suffix("").as_posix() for file in root.rglob("*.py"))
    return sorted(file for file in files if not file.startswith(GENERATED) and "/__" not in file)


def counterpart(module: str) -> str:
    """Return one name for the modules that may share theirs, and the names of their classes.

    These are both clients, a tool and its worker, what each protocol of a model has, and both databases.
    """
    module = module.replace("bedrock/_sync/", "bedrock/_async/")
    module = re.sub(r"/tools/workers/(?=\w+$)", "/tools/", module)
    module = re.sub(r"/store/(sqlite|postgres)/", "/store/", module)
    return re.sub(r"/protocols/\w+/(?=(request|response)$)", "/protocols/", module)


def public_classes(package: str) -> Iterator[tuple[str, str]]:
    """Yield the name and the module of every public class, also of those in `__init__`."""
    root = SOURCES[package]
    for file in sorted(root.rglob("*.py")):
        module = file.relative_to(root.parent).with_suffix("").as_posix()
        if not module.startswith(GENERATED):
            classes = [node.name for node in ast.parse(file.read_text()).body if isinstance(node, ast.ClassDef)]
            yield from ((name, module) for name in classes if not name.startswith("_"))


def is_port_with_adapter(places: set[str]) -> bool:
    """Whether these are a port and the one adapter that is named after it."""
    port, *others = sorted(places, key=lambda place: not place.startswith("actors/ports/"))
    return port.startswith("actors/ports/") and len(others) == 1 and others[0].startswith("actors/adapters/")


def test_imports_form_no_circle() -> None:
    """Not even with the imports that only type checkers make."""
    graph = grimp.build_graph(*SOURCES, cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert "bedrock.states" in imports["bedrock.errors"], "imports for types are seen"
    try:
        graphlib.TopologicalSorter(imports).prepare()
    except graphlib.CycleError as error:
        pytest.fail("these import one another: " + " <- ".join(error.args[1]))


@pytest.mark.parametrize("package", SOURCES)
def test_a_folder_has_few_modules(package: str) -> None:
    counts = Counter(module.rpartition("/")[0] for module in modules(package))
    limits = {folder: MORE_MODULES if folder in LARGER else MOST_MODULES for folder in counts}
    too_full = {folder: count for folder, count in counts.items() if count > limits[folder]}
    assert too_full == {}


@pytest.mark.parametrize("package", SOURCES)
def test_no_two_modules_have_one_name(package: str) -> None:
    named: dict[str, set[str]] = defaultdict(set)
    for module in modules(package):
        named[module.rpartition("/")[2]].add(counterpart(module))
    doubled = {name: sorted(places) for name, places in named.items() if len(places) > 1}
    assert {name: places for name, places in doubled.items() if not is_port_with_adapter(set(places))} == {}


@pytest.mark.parametrize("packages", [("actors", "server"), ("bedrock",)], ids="+".join)
def test_no_two_public_classes_have_one_name(packages: tuple[str, ...]) -> None:
    """The client is a library of its own: it names what the contract has as the server does."""
    named: dict[str, set[str]] = defaultdict(set)
    for package in packages:
        for name, module in public_classes(package):
            named[name].add(counterpart(module))
    assert named["Supervisor" if "actors" in packages else "Client"], "classes are seen"
    assert {name: sorted(places) for name, places in named.items() if len(places) > 1} == {}


EXAMINED = {
    "actors/adapters/llm/provider.py: dict[str, ModelLimits]": "by a decoder of its module",
    "actors/adapters/store/rows.py: Attachment": "by a decoder of its module",
    "actors/adapters/store/rows.py: ConversationRecord": "by a decoder of its module",
    "actors/common/settings_checks.py: kind": "while the server starts",
    "clients/bedrock/_shared/function_tools.py: self.parameters": "when the function becomes a tool",
    "clients/bedrock/cli/arguments.py: list[_McpTable]": "on the only thread of a command",
    "server/contract/pagination.py: kind": "under a lock",
    "server/gateway/console.py: SignIn": "on the gateway's event loop",
    "server/gateway/event_streams.py: Followed": "on the gateway's event loop",
}


def test_no_two_threads_are_the_first_to_use_a_type_of_msgspec() -> None:
    """It examines a type then, and crashes the process; decoders of modules do so when they are imported."""
    plain = re.compile(r"(dict|str)(\[str, (Any|(msgspec\.)?Raw)\])?")
    found = set()
    for file in sorted(file for root in SOURCES.values() for file in root.rglob("*.py")):
        text = file.read_text()
        converting = {"msgspec.convert", *re.findall(r"^from msgspec import .*\b(convert)\b", text, re.MULTILINE)}
        for call in (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)):
            kinds = [keyword.value for keyword in call.keywords if keyword.arg == "type"]
            if (called := ast.unparse(call.func)) in converting:
                kinds = call.args[1:2]
            elif not called.endswith(".decode"):
                continue
            names = {ast.unparse(kind) for kind in kinds}
            found |= {f"{file.relative_to(ROOT)}: {name}" for name in names if not plain.fullmatch(name)}
    assert found == EXAMINED.keys()


def test_no_file_ends_with_a_comment_that_was_torn_from_its_line() -> None:
    files = [file for root in SOURCES.values() for file in root.rglob("*.py") if "_pb2" not in file.name]
    assert [file for file in files if re.search(r"\n[ ]*#.*\n\Z", file.read_text())] == []


def test_the_modules_of_tests_that_begin_first_exist() -> None:
    assert not [path for path in LONG if not (ROOT / path).is_file()]


def test_what_several_levels_of_the_tests_use_uses_none_of_them() -> None:
    imported = re.compile(r"^\s*(?:from|import) tests\.(\w+)", re.MULTILINE)
    files = (ROOT / "tests" / "support").glob("*.py")
    used = {file.name: set(imported.findall(file.read_text())) - {"support"} for file in files}
    assert {name: found for name, found in used.items() if found} == {}


@pytest.mark.parametrize("level", HELPER_LINES)
def test_the_helpers_of_a_level_of_the_tests_do_not_grow(level: str) -> None:
    """Before there is another one, one that is there is used or extended; `support` gets what two levels need."""
    helpers = [file for file in (ROOT / "tests" / level).rglob("*.py") if not file.name.startswith("test_")]
    lines = sum(len(file.read_text().splitlines()) for file in helpers)
    assert lines <= HELPER_LINES[level]
