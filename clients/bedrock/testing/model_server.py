"""A model provider on 127.0.0.1 that speaks Anthropic's Messages API over HTTP and answers from a script."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from bedrock.testing.exchange import Exchange
from bedrock.testing.http_server import Received, ScriptedServer, ServedConnection, whole
from bedrock.testing.script import ScriptedModel

if TYPE_CHECKING:
    import ssl


class ModelServer(ScriptedServer):
    """A model provider that runs while the ``with`` block does. `model` can be replaced between requests."""

    def __init__(
        self,
        model: ScriptedModel | None = None,
        *,
        tls: ssl.SSLContext | None = None,
        models: Sequence[str] = (),
        check: Callable[[bytes], object] | None = None,
    ) -> None:
        """`models` is the provider's list of models; if it is empty, listing the models returns 404.

        `check` raises an exception for a wrong request body; `faults` records the exception.
        """
        super().__init__(self._serve, tls=tls)
        self.model = model or ScriptedModel()
        self.models = tuple(models)
        self.faults: list[str] = []
        """The paths of the requests that `check` found wrong, each with the message of the exception."""
        self._check = check

    @property
    def asked(self) -> int:
        """The number of requests for an answer; requests for the list of models do not count."""
        return sum(not _is_listing(received) for received in self.received)

    def __exit__(self, *_: object) -> None:
        for script in self.model.scripts:
            script.release()
        super().__exit__()

    def _serve(self, connection: ServedConnection) -> None:
        received = connection.read_request()
        if _is_listing(received):
            connection.send(self._listing())
            return
        if self._check is not None:
            try:
                self._check(received.body)
            except Exception as fault:  # noqa: BLE001 -- any error in `check` is a fault of the request
                self.faults.append(f"{received.path}: {fault}")
        exchange = Exchange(connection, received)
        self.model.script_for(exchange).serve(exchange)

    def _listing(self) -> bytes:
        body = json.dumps({"data": [{"id": name, "object": "model"} for name in self.models]}).encode()
        return whole(200 if self.models else 404, body)


def _is_listing(received: Received) -> bool:
    return received.path.partition("?")[0].endswith("/models")
