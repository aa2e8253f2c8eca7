"""Fixtures of the model adapters' tests."""

import os
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.certificates import make_self_signed
from tests.support.model_requests import close_models


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate for 127.0.0.1 with its key, in one PEM file."""
    return make_self_signed(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def server_tls(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


@pytest.fixture
def no_leaked_fds() -> Iterator[None]:
    """Fail if more file descriptors are open after the test than before."""
    before = open_fds()
    yield
    close_models()
    pause = threading.Event()
    for _ in range(200):
        if open_fds() <= before:
            return
        pause.wait(0.01)
    assert open_fds() <= before, [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]


def open_fds() -> int:
    return len(os.listdir("/proc/self/fd"))
