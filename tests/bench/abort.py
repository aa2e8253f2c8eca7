"""Aborting a model request: from the cancel to the end of the call with its socket shut, phase by phase."""

import ssl
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from actors.adapters.llm.provider import Secret
from tests.bench.figures import Report, spread
from tests.support.certificates import make_self_signed
from tests.support.model_requests import RequestThread, ask, close_models, model
from tests.support.scripted_server import Script, ScriptedServer, ServedConnection, in_turn, kept
from tests.unit.llm.test_abort import (
    ANSWER,
    PATIENT,
    PHASES,
    ROUTES,
    connecting_to,
    full_backlog,
    handshaking,
    served,
    until,
)

TIMES = 168
"""Of each of the twelve cases: two thousand aborts in all."""


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
        certificate = make_self_signed(Path(folder))
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(certificate)
        _connecting().add(report, "connecting")
        _handshaking(certificate).add(report, "TLS handshake")
        for phase in PHASES:
            for reused in (False, True):
                how = ", kept connection" if reused else ""
                _answering(phase, tls, certificate, reused=reused).add(report, phase.replace("_", " ") + how)


def _answering(phase: str, tls: ssl.SSLContext, certificate: Path, *, reused: bool) -> Aborts:
    """Abort plain, over TLS, by proxy and by tunnel in turn; `reused`: the second request of a connection."""
    aborts = Aborts()
    script = in_turn(kept(ANSWER), PHASES[phase]) if reused else PHASES[phase]
    for number in range(TIMES):
        with served(ROUTES[number % len(ROUTES)], script, tls, certificate) as (server, asked):
            if reused:
                ask(asked)
            asking = RequestThread(asked)
            server.reached.wait(10)
            if phase not in {"before_headers", "inside_headers"}:
                asking.sink.heard.wait(10)
            aborts.of(asking)
            assert server.accepted == 1
    return aborts


def _handshaking(certificate: Path) -> Aborts:
    """Abort handshakes with a server, and behind a proxy, in turn."""

    def behind_a_proxy(connection: ServedConnection) -> None:
        connection.read_request()
        connection.send(b"HTTP/1.1 200 Connected\r\n\r\n")
        handshaking(connection)

    aborts = Aborts()
    scripts: tuple[Script, ...] = (handshaking, behind_a_proxy)
    for number in range(TIMES):
        with ScriptedServer(scripts[number % 2]) as server:
            url = server.url.replace("http:", "https:")
            proxy = Secret(server.url if number % 2 else "")
            asking = RequestThread(model("anthropic", url, timeouts=PATIENT, ca_bundle=str(certificate), proxy=proxy))
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
            time.sleep(0.01)  # reading the kernel's table has used up this thread's time slice
            aborts.of(asking)
    close_models()
    return aborts
