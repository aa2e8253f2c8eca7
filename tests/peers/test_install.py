"""Setting the peers up: twice is once, and what fails says so."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.peers import install, installed
from tests.peers.conftest import Node

NOWHERE = "http://127.0.0.1:9"
"""An address where nobody listens."""


def test_node_runs_what_npm_installed(node: Node) -> None:
    done = node.run("-e", "console.log(typeof require('@copilotkit/aimock').LLMock)", folder=installed.NODE_PACKAGES)
    assert done.stdout == "function\n", done.stderr


def test_what_is_installed_is_left_alone() -> None:
    """Without a way to any registry."""
    environment = os.environ | {"PIP_INDEX_URL": NOWHERE, "UV_INDEX_URL": NOWHERE, "npm_config_registry": NOWHERE}
    command = [sys.executable, "-m", "tests.peers.install", "node", "llama", "client", "mcp", "envoy"]
    done = subprocess.run(
        command, cwd=installed.ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("part", ["node", "llama", "client", "mcp", "envoy"])
def test_a_registry_that_does_not_answer_is_named_as_the_reason(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(installed, "NODE_PACKAGES", tmp_path / "node")
    monkeypatch.setattr(installed, "LLAMA", tmp_path / "llama")
    monkeypatch.setattr(installed, "MCP_SERVERS", tmp_path / "mcp-servers")
    monkeypatch.setattr(installed, "ENVOY_WHEEL", tmp_path / "envoy")
    monkeypatch.setattr(installed, "CLIENTS", {name: tmp_path / name for name in installed.CLIENTS})
    for name in ("PIP_INDEX_URL", "UV_INDEX_URL", "npm_config_registry"):
        monkeypatch.setenv(name, NOWHERE)
    for name in ("PIP_RETRIES", "UV_HTTP_RETRIES", "npm_config_fetch_retries"):
        monkeypatch.setenv(name, "0")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    monkeypatch.setenv("npm_config_cache", str(tmp_path / "cache"))
    assert install.main([part]) == 1
    assert "Is the package registry reachable from here?" in capsys.readouterr().err
