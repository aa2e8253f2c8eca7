"""The example programs of clients/examples, with a server that has no key of a provider."""

import runpy
from pathlib import Path

import pytest
from bedrock import Client

from tests.documents.pages import ROOT
from tests.support.server_process import Servers

pytestmark = pytest.mark.one_server("it reaches the server by its socket")


def test_the_order_desk_answers_with_its_own_functions_only(
    start_server: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fastapi.testclient import TestClient

    server = start_server(tmp_path)
    monkeypatch.setenv("BEDROCK_DATA_DIR", str(server.data))
    desk = runpy.run_path(str(ROOT / "clients" / "examples" / "order_desk.py"))
    with TestClient(desk["app"]) as web:
        replied = web.post("/questions", json={"question": "Where is order 7?"})
    assert replied.status_code == 200, replied.text
    assert replied.json() == {"text": "Scripted text.", "orders": [0]}, "as the scripted model makes it up"
    assert desk["orders"] == {7: "cancelled", 8: "shipped"}, "the scripted model has used every function"
    with Client() as client:
        (made,) = client.conversations()
        talk = client.conversation(made.name)
        results = [result.output for message in talk.messages() for result in message.tool_results]
        assert results[:3] == ["[]", '{"number":7,"state":"open"}', "cancelled"]
        assert talk.get().tools is not None
