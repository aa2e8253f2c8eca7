"""Importing the package is cheap, and what it promises is there."""

import inspect
import json
import subprocess
import sys

import bedrock
import pytest

HEAVY = ("grpc", "google", "click", "rich", "prompt_toolkit", "asyncio")
CLI_ONLY = ("click", "rich", "prompt_toolkit")


def loaded_by(statement: str) -> set[str]:
    """The top-level modules that a fresh interpreter has loaded after a statement."""
    script = f"import sys, json; sys.path[:] = {sys.path!r}; {statement}; print(json.dumps(sorted(sys.modules)))"
    printed = subprocess.run([sys.executable, "-I", "-S", "-c", script], check=True, capture_output=True, text=True)
    return {module.split(".")[0] for module in json.loads(printed.stdout)}


@pytest.mark.parametrize("statement", ["import bedrock", "from bedrock.errors import AgentBusy"])
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
