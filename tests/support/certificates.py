"""Authorities and certificates for tests, made by openssl."""

import subprocess
from pathlib import Path

from tests.support.patience import PATIENCE

KEY = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"


def openssl(folder: Path, command: str) -> None:
    """Run a command of openssl in a folder."""
    subprocess.run(["openssl", *command.split()], cwd=folder, check=True, capture_output=True, timeout=PATIENCE)


def make_authority(folder: Path, name: str) -> None:
    """Make the certificate NAME.pem of an authority, and its key NAME.key."""
    openssl(folder, f"req -x509 {KEY} -days 2 -subj /CN={name} -keyout {name}.key -out {name}.pem")


def make_self_signed(folder: Path, name: str = "server") -> Path:
    """Make a certificate NAME.pem for 127.0.0.1 that nobody signs, and its key NAME.key; return a file of both."""
    names = "-subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1"
    openssl(folder, f"req -x509 {KEY} -days 2 {names} -keyout {name}.key -out {name}.pem")
    both = folder / f"{name}-both.pem"
    both.write_bytes((folder / f"{name}.key").read_bytes() + (folder / f"{name}.pem").read_bytes())
    return both


def make_certificate(folder: Path, name: str, names: str, authority: str) -> None:
    """Make a certificate NAME.pem for these names, and its key NAME.key."""
    openssl(folder, f"req {KEY} -subj /CN={name} -addext subjectAltName={names} -keyout {name}.key -out {name}.csr")
    signed = f"-CA {authority}.pem -CAkey {authority}.key -CAcreateserial -copy_extensions copy"
    openssl(folder, f"x509 -req -in {name}.csr {signed} -days 2 -out {name}.pem")
