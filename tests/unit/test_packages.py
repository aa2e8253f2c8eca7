"""The two distributions: each file, and the program, belongs to one of them."""

from __future__ import annotations

import tomllib
from typing import Any

from tests.documents.pages import ROOT

CLIENT: dict[str, Any] = tomllib.loads((ROOT / "clients" / "pyproject.toml").read_text())
SERVER: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_client_owns_its_package_and_the_program_and_the_server_needs_it() -> None:
    assert [made["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] for made in (CLIENT, SERVER)] == [
        ["bedrock"],
        ["actors", "server"],
    ]
    assert CLIENT["project"]["scripts"] == {"bedrock": "bedrock.cli:main"}
    assert "scripts" not in SERVER["project"]
    version = CLIENT["project"]["version"]
    assert SERVER["project"]["version"] == version
    assert f"{CLIENT['project']['name']}=={version}" in SERVER["project"]["dependencies"]


def test_what_the_program_needs_comes_with_the_client() -> None:
    needed = {requirement.partition(">")[0] for requirement in CLIENT["project"]["dependencies"]}
    assert {"click", "rich", "prompt_toolkit"} <= needed
    assert "optional-dependencies" not in CLIENT["project"]
