"""Runs that end with a value: kept by the provider, or submitted by a tool."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from bedrock.errors import RunFailed

from tests.support.chat import Chat
from tests.support.fake_provider import FakeProvider, Play, calls, says
from tests.support.patience import within
from tests.support.server_process import API_KEY, ServerProcess, Servers

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}},
    "required": ["name"],
    "additionalProperties": False,
}
FORMS = {"native": "true", "tool": "false"}
GOOD, BAD = {"name": "Ada"}, {"name": 7}


@pytest.fixture(scope="module")
def server(fake_provider: FakeProvider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that knows its provider twice: as one that keeps schemas, and as one that does not."""
    folder, servers = tmp_path_factory.mktemp("server"), Servers()
    tables = [
        f'[providers.{form}]\nprotocol = "anthropic"\nbase_url = "{fake_provider.url}"\napi_key = "{API_KEY}"\n'
        f'models = ["{form}"]\ndiscover = "never"\nstructured_output = {keeps}\n'
        for form, keeps in FORMS.items()
    ]
    config = folder / "config.toml"
    config.write_text("\n".join(tables))
    yield servers(folder, "--config", str(config), BEDROCK_TITLES="false")
    servers.close()


@pytest.mark.parametrize("form", FORMS)
def test_a_run_ends_with_a_value_is_reminded_twice_and_then_fails(open_chat: Callable[..., Chat], form: str) -> None:
    def gives(value: Any) -> Play:
        return says(json.dumps(value)) if form == "native" else calls(("submit_output", value))

    chat = open_chat(*map(gives, (GOOD, BAD, BAD, GOOD, BAD, BAD, BAD)), model=form)
    for requests in (1, 4):
        stop = within(chat.send("Who?", output_schema=SCHEMA).wait)
        assert stop is not None
        assert (stop.output, len(chat.part.exchanges)) == (GOOD, requests)
    with pytest.raises(RunFailed, match="name") as failed:
        within(chat.send("Who?", output_schema=SCHEMA).answer)
    assert failed.value.reason == "OUTPUT_INVALID"
    asked = [exchange.body for exchange in chat.part.exchanges]
    assert len(asked) == 7
    for body in asked:
        kept = body.get("output_config", {}).get("format", {}).get("schema")
        tools = [tool["name"] for tool in body["tools"]]
        assert (kept == SCHEMA, "submit_output" in tools) == (form == "native", form == "tool")
    assert json.dumps(asked[3]).count("7 is not of type") == 2, "each reminder says what does not fit"
    chat.assert_valid()
