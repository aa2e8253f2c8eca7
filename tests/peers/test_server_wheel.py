"""The server's wheel: nothing in it is also in the client's, so that either can be installed and removed alone."""

import json
import re
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from tests.peers import installed


def build(source: Path, folder: Path) -> zipfile.ZipFile:
    """The wheel of a project."""
    command: list[str | Path] = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder]
    subprocess.run(command, cwd=source, capture_output=True, check=True)
    (built,) = folder.glob("*.whl")
    return zipfile.ZipFile(built)


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> tuple[zipfile.ZipFile, zipfile.ZipFile]:
    """The server's and the client's."""
    return (
        build(installed.ROOT, tmp_path_factory.mktemp("server")),
        build(installed.ROOT / "clients", tmp_path_factory.mktemp("client")),
    )


def text(wheel: zipfile.ZipFile, name: str) -> str:
    """A file of the wheel's metadata; empty if there is none."""
    found = [each for each in wheel.namelist() if each.endswith(f".dist-info/{name}")]
    return wheel.read(found[0]).decode() if found else ""


def test_the_two_wheels_have_no_file_in_common(wheels: tuple[zipfile.ZipFile, zipfile.ZipFile]) -> None:
    server, client = ({name for name in wheel.namelist() if ".dist-info/" not in name} for wheel in wheels)
    assert {name.partition("/")[0] for name in server} == {"actors", "server"}
    assert {name.partition("/")[0] for name in client} == {"bedrock"}
    shipped = ("bedrock.service", "bedrock.rules.yml", "envoy.yaml", "envoy-certificate.yaml", "envoy-json.yaml")
    assert {f"server/deploy/{name}" for name in shipped} <= set(server)
    assert {"server/gateway/page/index.html", "server/gateway/page/app.js"} <= set(server)


def test_the_servers_wheel_says_what_it_is_made_of(wheels: tuple[zipfile.ZipFile, zipfile.ZipFile]) -> None:
    bill = json.loads(text(wheels[0], "sboms/sbom.cdx.json"))
    named = {component["name"] for component in bill["components"]}
    needed = Parser().parsestr(text(wheels[0], "METADATA")).get_all("Requires-Dist") or []
    direct = {re.split(r"[^\w-]", each.partition(";")[0])[0] for each in needed if "extra ==" not in each}
    assert direct <= named


def test_the_program_is_the_clients_and_the_server_adds_commands(
    wheels: tuple[zipfile.ZipFile, zipfile.ZipFile],
) -> None:
    server, client = (text(wheel, "entry_points.txt") for wheel in wheels)
    assert "[console_scripts]\nbedrock = bedrock.cli:main" in client
    assert "console_scripts" not in server
    assert "serve = server.cli:serve" in server
    needed = Parser().parsestr(text(wheels[0], "METADATA")).get_all("Requires-Dist")
    version = Parser().parsestr(text(wheels[1], "METADATA"))["Version"]
    assert needed is not None
    assert f"phoenix-bedrock-client=={version}" in needed
