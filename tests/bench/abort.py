"""Aborting a model request: from the cancel to the end of the call with its socket shut, phase by phase."""

from __future__ import annotations

import ssl
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from actors.adapters.llm.provider import Timeouts
from tests.bench.figures import Report, spread
from tests.unit.llm.conftest import make_certificate
from tests.unit.llm.model_requests import RequestThread, model
from tests.unit.llm.scripted_server import Script, ScriptedServer
from tests.unit.llm.test_abort import PHASES, connecting_to, full_backlog, handshaking, phases, until

TIMES = 84
"""Of each of the twelve cases: a thousand aborts in all."""
PROTOCOLS = ("anthropic", "openai-chat", "openai-responses")
PATIENT = Timeouts(connect=120, first_byte=120, idle=120)


class Aborts:
    """The aborts of one case: how long each took, in milliseconds, and how many never ended."""

    def __init__(self) -> None:
        self.took: list[float] = []
        self.hangs = 0

    def of(self, asking: RequestThread) -> None:
        began = time.perf_counter()
        self.hangs += not asking.cancelled()
        self.took.append((time.perf_counter() - began) * 1000)

    def add(self, report: Report, case: str) -> None:
        report.add(f"abort of a model request, {case}", "ms", hangs=self.hangs, **spread(self.took))


def run(report: Report) -> None:
    with tempfile.TemporaryDirectory() as folder:
        certificate = make_certificate(Path(folder))
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(certificate)
        _connecting().add(report, "connecting")
        _handshaking(certificate).add(report, "TLS handshake")
        for phase in PHASES:
            for how, context in (("", None), (", TLS", tls)):
                _answering(phase, context, certificate).add(report, phase.replace("_", " ") + how)


def _answering(phase: str, tls: ssl.SSLContext | None, certificate: Path) -> Aborts:
    aborts = Aborts()
    for number in range(TIMES):
        protocol = PROTOCOLS[number % len(PROTOCOLS)]
        with ScriptedServer(phases(protocol)[phase], tls=tls) as server:
            asking = RequestThread(model(protocol, server.url, timeouts=PATIENT, ca_bundle=str(certificate)))
            server.reached.wait(10)
            if phase not in {"before_headers", "inside_headers"}:
                asking.sink.heard.wait(10)
            aborts.of(asking)
    return aborts


def _handshaking(certificate: Path) -> Aborts:
    aborts = Aborts()
    script: Script = handshaking
    for _ in range(TIMES):
        with ScriptedServer(script) as server:
            url = server.url.replace("http:", "https:")
            asking = RequestThread(model("anthropic", url, timeouts=PATIENT, ca_bundle=str(certificate)))
            server.reached.wait(10)
            aborts.of(asking)
    return aborts


def _connecting() -> Aborts:
    aborts = Aborts()
    with ExitStack() as stack:
        port, waiting = full_backlog(stack)
        asked = model("anthropic", f"http://127.0.0.1:{port}", timeouts=PATIENT)
        for _ in range(TIMES):
            asking = RequestThread(asked)
            until(lambda: connecting_to(port) > waiting)
            aborts.of(asking)
    return aborts
