"""The package: what it imports, what it promises, what is generated, and that its README runs."""

import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import bedrock
import pytest

from tests.generate.client_sync import BY_HAND, SOURCE, TARGET, generated
from tests.support.fake_server import FakeBedrock, asks_person, ends_with, says, uses_tool

HEAVY = ("grpc", "google", "click", "rich", "prompt_toolkit", "asyncio")
CLI_ONLY = ("click", "rich", "prompt_toolkit")


def loaded_by(statement: str) -> set[str]:
    """The top-level modules that a fresh interpreter has loaded after a statement."""
    script = f"import sys, json; sys.path[:] = {sys.path!r}; {statement}; print(json.dumps(sorted(sys.modules)))"
    printed = subprocess.run([sys.executable, "-I", "-S", "-c", script], check=True, capture_output=True, text=True)
    return {module.split(".")[0] for module in json.loads(printed.stdout)}


@pytest.mark.parametrize(
    "statement", ["import bedrock", "from bedrock.errors import AgentBusy", "import bedrock.testing.plugin"]
)
def test_importing_loads_nothing_heavy(statement: str) -> None:
    assert loaded_by(statement).isdisjoint(HEAVY)


@pytest.mark.parametrize("statement", ["from bedrock import Client", "from bedrock import AsyncClient, v1"])
def test_the_client_does_without_the_libraries_of_the_terminal(statement: str) -> None:
    assert loaded_by(statement).isdisjoint(CLI_ONLY)


def test_everything_promised_can_be_imported() -> None:
    assert bedrock.__all__ == sorted(bedrock.__all__)
    for name in bedrock.__all__:
        assert getattr(bedrock, name).__name__ == name
        assert name in dir(bedrock)


def test_anything_else_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        bedrock.Nonsense  # noqa: B018


def test_ask_takes_what_the_method_of_a_client_takes() -> None:
    _, *parameters = inspect.signature(bedrock.Client.ask).parameters.values()
    assert [*inspect.signature(bedrock.ask).parameters.values()] == parameters
    assert bedrock.ask.__doc__


@pytest.mark.parametrize("argument", ["--help", "--version"])
def test_a_program_that_only_prints_about_itself_loads_no_command(argument: str) -> None:
    run_program = (
        f"sys.argv = ['bedrock', '{argument}']; from bedrock.cli import main\ntry: main()\nexcept SystemExit: pass"
    )
    script = f"import sys, json; sys.path[:] = {sys.path!r}; {run_program}\nprint(json.dumps(sorted(sys.modules)))"
    printed = subprocess.run([sys.executable, "-I", "-S", "-c", script], check=True, capture_output=True, text=True)
    loaded = set(json.loads(printed.stdout.splitlines()[-1]))
    assert loaded.isdisjoint({"grpc", "google", "rich", "prompt_toolkit", "asyncio", "server.cli", "bedrock.events"})
    assert not [name for name in loaded if name.startswith("bedrock.cli.commands.")]


# --- The blocking client is what the generator makes of the client for asyncio ---


def test_the_blocking_client_is_up_to_date() -> None:
    stale = [path.name for path, text in generated().items() if path.read_text() != text]
    assert not stale, "make client-sync"


def test_every_module_of_the_blocking_client_is_generated_or_known_to_be_written_by_hand() -> None:
    assert {path.name for path in TARGET.glob("*.py")} == {path.name for path in SOURCE.glob("*.py")} | BY_HAND


def test_nothing_of_asyncio_is_left_in_it() -> None:
    for path in TARGET.glob("*.py"):
        for word in ("await ", "async ", "Async", "asyncio"):
            assert word not in path.read_text(), f"{word} in {path.name}"


# --- The examples of the clients' README run as they stand ---


README = Path(__file__).parents[3] / "clients" / "README.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_the_examples_run(
    example: str, address: str, fake: FakeBedrock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BEDROCK_ADDRESS", address)
    first = uses_tool("pytest", "a", "Done.", ask=True) if "approve" in example else says("Done.")
    if "output_schema" in example:
        first = ends_with({"lines": "Done."})
    if "on_question" in example:
        first = asks_person(server="git")
    fake.answers.extend([first, says("Done.")])
    exec(example, {"__name__": "__main__"})
    assert capsys.readouterr().out.strip().endswith("Done.")


def test_there_are_examples() -> None:
    assert len(EXAMPLES) == 10
