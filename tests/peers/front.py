"""Envoy, with the settings that Bedrock ships, before a server."""

import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.peers import installed

DEPLOY = installed.ROOT / "server" / "deploy"
SUBJECT = ("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1")


@dataclass(frozen=True)
class Front:
    """An Envoy that runs."""

    process: subprocess.Popen[bytes]
    address: str
    """https://host:port, with the certificate below."""
    tls: Path
    """The directory of the certificate `tls.crt` and its key `tls.key`."""

    @property
    def certificate(self) -> Path:
        return self.tls / "tls.crt"


def program() -> str:
    """The machine's Envoy, else the installed one. Raises FileNotFoundError without any."""
    found = shutil.which("envoy") or (str(installed.ENVOY) if installed.ENVOY.exists() else None)
    if found is None:
        raise FileNotFoundError("there is no Envoy; `python -m tests.peers.install envoy` installs one")
    return found


def configured(folder: Path, server: str, port: int) -> Path:
    """Write the settings that are shipped, with what has to be changed changed and a new certificate."""
    certificate = folder / "bedrock-certificate.yaml"
    self_signed(folder / "tls")
    text = _changed(DEPLOY / "envoy-certificate.yaml", {"/etc/envoy/tls": str(folder / "tls")})
    certificate.write_text(text, encoding="utf-8")
    changes = {
        "{address: 0.0.0.0, port_value: 7443}": f"{{address: 127.0.0.1, port_value: {port}}}",
        "/etc/envoy/bedrock-certificate.yaml": str(certificate),
        "{address: 127.0.0.1, port_value: 7421}": f"{{address: 127.0.0.1, port_value: {server.rpartition(':')[2]}}}",
    }
    settings = folder / "envoy.yaml"
    settings.write_text(_changed(DEPLOY / "envoy.yaml", changes), encoding="utf-8")
    return settings


def _changed(file: Path, changes: dict[str, str]) -> str:
    text = file.read_text(encoding="utf-8")
    for old, new in changes.items():
        assert old in text, f"{file.name} has no {old} to change"
        text = text.replace(old, new)
    return text


def self_signed(folder: Path) -> None:
    """Move a new certificate for 127.0.0.1 and its key into a directory, as a renewal does."""
    fresh = folder.with_name("fresh")
    fresh.mkdir()
    files = ("-keyout", str(fresh / "tls.key"), "-out", str(fresh / "tls.crt"))
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    subprocess.run(["openssl", "req", "-x509", *key, *SUBJECT, *files], check=True, capture_output=True, timeout=60)
    folder.mkdir(exist_ok=True)
    for file in ("tls.key", "tls.crt"):
        (fresh / file).rename(folder / file)
    fresh.rmdir()


@contextmanager
def front(folder: Path, server: str) -> Iterator[Front]:
    """Envoy before the server at this address. `folder`: an empty directory of its own."""
    port = free_port()
    with _running(configured(folder, server, port)) as process:
        yield Front(process, f"https://127.0.0.1:{port}", folder / "tls")


@contextmanager
def transcoder(folder: Path, server: str) -> Iterator[str]:
    """Envoy as a gateway for JSON over HTTP, before the server at this address; yields its URL."""
    port, settings, described = free_port(), folder / "envoy-json.yaml", folder / "bedrock.binpb"
    build = [str(Path(sys.executable).with_name("buf")), "build", "-o", str(described)]
    subprocess.run(build, cwd=installed.ROOT / "protos", check=True, timeout=60)
    changes = {
        "port_value: 7423": f"port_value: {port}",
        "/etc/envoy/bedrock.binpb # CHANGE": f"{described}",
        "port_value: 7421": f"port_value: {server.rpartition(':')[2]}",
    }
    settings.write_text(_changed(DEPLOY / settings.name, changes), encoding="utf-8")
    with _running(settings):
        yield f"http://127.0.0.1:{port}"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@contextmanager
def _running(settings: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [program(), "-c", str(settings), "--concurrency", "2", "--disable-hot-restart", "-l", "warning"]
    with settings.with_name("envoy.log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
