"""The two distributions, what belongs to each, and what is installed beside them."""

import json
import re
import tomllib
from typing import Any

import pytest

from tests.documents.containerfile import stages
from tests.documents.pages import ROOT
from tests.peers.install import CLIENTS

CLIENT: dict[str, Any] = tomllib.loads((ROOT / "clients" / "pyproject.toml").read_text())
SERVER: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_client_owns_its_package_and_the_program_and_the_server_needs_it() -> None:
    assert [made["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] for made in (CLIENT, SERVER)] == [
        ["bedrock"],
        ["actors", "server"],
    ]
    assert CLIENT["project"]["scripts"] == {"bedrock": "bedrock.cli:main"}
    assert "scripts" not in SERVER["project"]
    plugin = "bedrock.testing.plugin"
    assert CLIENT["project"]["entry-points"] == {"pytest11": {plugin: plugin}}
    version = CLIENT["project"]["version"]
    assert SERVER["project"]["version"] == version
    assert f"{CLIENT['project']['name']}=={version}" in SERVER["project"]["dependencies"]


def test_whatever_says_how_to_install_takes_the_checkout() -> None:
    """Neither distribution is on a public index."""
    of_an_index = re.compile(r"(?:pip|pipx|uv|uvx) [^\n`]*phoenix-bedrock(?!-client \.)")
    pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "clients" / "README.md"]
    code = [file for folder in ("actors", "server", "clients/bedrock") for file in (ROOT / folder).rglob("*.py")]
    assert not [(file.name, found[0]) for file in (*pages, *code) if (found := of_an_index.search(file.read_text()))]
    assert "uvx --from ./clients --with . bedrock" in (ROOT / "docs" / "operations.md").read_text()


def test_the_licence_is_a_file_in_both_packages() -> None:
    """A link would dangle in a source distribution, and a wheel built from that would have no licence."""
    copy = ROOT / "clients" / "LICENSE"
    assert not copy.is_symlink()
    assert copy.read_text() == (ROOT / "LICENSE").read_text()


def test_what_the_program_needs_comes_with_the_client() -> None:
    needed = {requirement.partition(">")[0] for requirement in CLIENT["project"]["dependencies"]}
    assert {"click", "rich", "prompt_toolkit"} <= needed
    assert "optional-dependencies" not in CLIENT["project"]
    assert SERVER["project"]["optional-dependencies"].keys() == {
        "ag-ui",
        "http",
        "jwt",
        "mcp",
        "metrics",
        "mtls",
        "otel",
        "postgres",
        "testing",
    }


def test_the_client_s_wheel_is_tried_with_everything_that_it_needs() -> None:
    """The environments of `make test-peers` have a version of each package that it names."""
    needed = sorted(re.split(r"[<>=]", requirement)[0] for requirement in CLIENT["project"]["dependencies"])
    for name, packages in CLIENTS.items():
        assert sorted(package.partition("==")[0] for package in packages) == needed, name


def test_every_tool_that_developing_needs_has_one_version() -> None:
    groups: dict[str, list[Any]] = SERVER["dependency-groups"]
    tools = [tool for group in groups.values() for tool in group if isinstance(tool, str)]
    assert [tool for tool in tools if not re.match(r"[\w-]+(\[\w+\])?==[\w.]+(;|$)", tool)] == []
    included = {part["include-group"] for part in groups["dev"]}
    assert included == groups.keys() - {"dev"}


def test_the_lock_holds_public_addresses_only() -> None:
    lock = (ROOT / "uv.lock").read_text()
    hosts = set(re.findall(r"\w+://([^/\"]+)", lock))
    assert hosts == {"pypi.org", "files.pythonhosted.org"}


@pytest.mark.parametrize("name", ["run", "dev"])
def test_what_is_installed_is_held_to_hashes_and_found_in_any_index(name: str) -> None:
    lines = (ROOT / "requirements" / f"{name}.txt").read_text().splitlines()
    wanted = re.compile(r"[\w.-]+(\[\w+\])?==\S+( ; .*)? \\|    --hash=sha256:[0-9a-f]{64}( \\)?|    #.*")
    assert [line for line in lines if not wanted.fullmatch(line)] == []


def test_the_container_runs_a_server_of_another_user_than_root_whose_health_is_asked() -> None:
    build, run = stages()
    assert build[0].text.removesuffix(" AS build") == run[0].text, "both have the same Python"
    named = [word for step in build if step.name == "COPY" for word in step.text.split()[:-1]]
    assert [path for path in named if not (ROOT / path).exists()] == []
    last = {step.name: step.text for step in run}
    assert last["USER"] not in {"0", "root"}
    assert f"--uid {last['USER']} " in last["RUN"]
    assert json.loads(last["ENTRYPOINT"]) == ["bedrock", "serve"]
    program, flag, code = json.loads(last["HEALTHCHECK"].partition("CMD ")[2])
    assert (program, flag) == ("python", "-c")
    compile(code, "HEALTHCHECK", "exec")


@pytest.mark.parametrize("file", ["Makefile", "server/deploy/Containerfile", "tests/peers/install.py"])
def test_what_is_held_to_hashes_is_not_resolved_again(file: str) -> None:
    """pip looks for the newest release of a package that another one needs with an extra, which has no hash here."""
    held = [line for line in (ROOT / file).read_text().splitlines() if "--require-hashes" in line]
    assert held
    assert all("--no-deps" in line for line in held)
