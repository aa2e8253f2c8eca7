"""What a server tells of its work, in its log, as metrics and as traces, and that it tells nobody what was said."""

import json
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from bedrock import Client, v1

from tests.support.chat import Chat
from tests.support.collector import Collector, values
from tests.support.fake_provider import FakeProvider, calls, says
from tests.support.patience import PATIENCE, eventually
from tests.support.server_process import API_KEY, ServerProcess, Servers, provider
from tests.support.watcher import Watcher

SAID = "unspeakable"
"""A word in everything that people, models and tools say here."""
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with Collector() as made:
        yield made


@pytest.fixture(scope="module")
def server(
    collector: Collector, fake_provider: FakeProvider, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """A server that tells all that it can."""
    servers = Servers()
    arguments = ("--metrics-listen", "0", "--otlp-endpoint", collector.url)
    soon = {"OTEL_BSP_SCHEDULE_DELAY": "50", "OTEL_METRIC_EXPORT_INTERVAL": "200", "OTEL_RESOURCE_ATTRIBUTES": "team=a"}
    yield servers(tmp_path_factory.mktemp("server"), *arguments, **soon, **provider(fake_provider.url))
    servers.close()


def logged(server: ServerProcess) -> list[dict[str, Any]]:
    return [json.loads(line) for line in server.log_text().rpartition("\n")[0].splitlines()]


def scraped(server: ServerProcess) -> str:
    """What Prometheus would get."""
    (said,) = (line["message"] for line in logged(server) if line["message"].startswith("metrics: "))
    with urllib.request.urlopen(said.removeprefix("metrics: "), timeout=PATIENCE) as answer:
        text: str = answer.read().decode()
    return text


def count(page: str, metric: str) -> float:
    """The sum of a metric's values over its labels; for histograms name its count."""
    found = [line.rpartition(" ")[2] for line in page.splitlines() if line.partition("{")[0].split(" ")[0] == metric]
    return sum(map(float, found))


@pytest.mark.one_server("it reads the log of the server that takes the call")
def test_a_turn_is_told_and_not_what_was_said_in_it(
    server: ServerProcess, collector: Collector, open_chat: Callable[..., Chat]
) -> None:
    bash = calls(("bash", {"cmd": f"echo {SAID} $TRACEPARENT"}), text=f"I am {SAID}.")
    chat = open_chat(bash, says(f"It was {SAID}."), mode="unrestricted", title=SAID)
    conversation = chat.name.removeprefix("conversations/")
    chat.ask(f"Say {SAID}")

    # the log
    expected = ["command accepted", "run began", "command accepted", "model request ended", "tool call ended",
                "model request ended", "run ended", "stream ended"]  # fmt: skip

    def lines() -> list[dict[str, Any]]:
        return [line for line in logged(server) if line.get("conversation") == conversation]

    eventually(lambda: len(lines()) >= len(expected), "a line for everything")
    found = lines()
    assert sorted(line["message"] for line in found) == sorted(expected)
    of = {line["message"]: line for line in found}
    assert {line["run"] for name, line in of.items() if "rpc" not in line} == {f"{conversation}:1"}
    assert (of["tool call ended"]["tool"], of["tool call ended"]["outcome"]) == ("bash", "ok")
    assert (of["run ended"]["outcome"], of["run ended"]["principal"]) == ("completed", "local")
    assert of["model request ended"]["output_tokens"] > 0
    assert of["stream ended"]["rpc"] == "Subscribe"

    # metrics; an observer may be a moment behind the log
    eventually(lambda: count(scraped(server), "bedrock_run_duration_seconds_count") > 0, "the run is counted")
    page = scraped(server)
    assert "otel_scope" not in page
    for metric in (
        "bedrock_rpc_duration_seconds_count", "bedrock_mailbox_wait_seconds_count",
        "bedrock_run_duration_seconds_count", "bedrock_tool_duration_seconds_count",
        "bedrock_store_transaction_duration_seconds_count", "bedrock_store_transaction_changes_count",
        "bedrock_files_open", "bedrock_threads",
        "gen_ai_client_operation_duration_seconds_count", "gen_ai_client_token_usage_sum",
        "gen_ai_client_operation_time_to_first_chunk_seconds_count",
    ):  # fmt: skip
        assert count(page, metric) > 0, metric
    assert count(page, "bedrock_runs_open") == count(page, "bedrock_model_requests_open") == 0
    eventually(lambda: {"bedrock.run.duration", "gen_ai.client.token.usage"} <= collector.metrics, "metrics by OTLP")

    # traces
    def spans() -> list[Any]:
        return [span for span in collector.spans if values(span.attributes)["gen_ai.conversation.id"] == conversation]

    eventually(lambda: len(spans()) == 4, "a span for everything")
    by_name = {span.name.partition(" ")[0]: span for span in spans()}
    run, tool, model = (by_name[name] for name in ("invoke_agent", "execute_tool", "chat"))
    assert {span.trace_id for span in spans()} == {run.trace_id}
    assert {span.parent_span_id for span in spans()} == {b"", run.span_id}
    assert values(run.attributes)["gen_ai.operation.name"] == "invoke_agent"
    assert values(model.attributes)["gen_ai.provider.name"] == "anthropic"
    assert values(model.attributes)["gen_ai.usage.output_tokens"] > 0
    assert values(model.attributes)["gen_ai.response.time_to_first_chunk"] > 0
    assert values(tool.attributes)["gen_ai.tool.name"] == "bash"
    assert f"00-{tool.trace_id.hex()}-{tool.span_id.hex()}-" in chat.part.exchanges[1].texts[-1]
    assert collector.resources[0]["service.name"] == "bedrock"
    assert collector.resources[0]["team"] == "a"

    for told in (server.log_text(), page, str(collector.spans)):
        for secret in (SAID, API_KEY, server.token):
            assert secret not in told


def test_sub_agents_are_in_the_trace_that_the_client_began(
    collector: Collector, client: Client, server: ServerProcess, open_chat: Callable[..., Chat],
    fake_provider: FakeProvider,
) -> None:  # fmt: skip
    sub_agent = fake_provider.part(calls(("submit_result", {"result": "done"})))
    task = {"task": f"Do it. {sub_agent.key}"}
    chat = open_chat(calls(("spawn_sub_agent", {"tasks": [task]})), says("Done."), mode="unrestricted")
    began = (("traceparent", f"00-{TRACE}-{SPAN}-01"),)
    with server.channel() as channel:
        v1.ConversationServiceStub(channel).SendMessage(
            v1.SendMessageRequest(name=chat.name, text=f"Go. {chat.part.key}"),
            metadata=(*server.metadata, *began),
            timeout=PATIENCE,
        )
    chat.settle()

    def spans() -> list[Any]:
        return [span for span in collector.spans if span.trace_id.hex() == TRACE]

    eventually(lambda: len(spans()) >= 6, "the spans of both")
    runs = {values(span.attributes)["gen_ai.agent.name"]: span for span in spans() if span.name.startswith("invoke")}
    assert runs["bedrock"].parent_span_id.hex() == SPAN
    assert runs["bedrock.sub_agent"].parent_span_id == runs["bedrock"].span_id
    chats = [span for span in spans() if span.name.startswith("chat")]
    assert {span.parent_span_id for span in chats} == {run.span_id for run in runs.values()}


def test_a_cancel_and_what_it_killed_are_counted(
    server: ServerProcess, open_chat: Callable[..., Chat], watch: Callable[..., Watcher]
) -> None:
    chat = open_chat(calls(("bash", {"cmd": "echo up; sleep 600"})), mode="unrestricted")
    watcher = watch(chat.name)
    chat.send("Wait.")
    watcher.until("tool_output_delta")
    chat.conversation.cancel()
    chat.settle()
    metrics = ("bedrock_cancel_duration_seconds_count", "bedrock_kill_duration_seconds_count")
    eventually(lambda: all(count(scraped(server), metric) == 1 for metric in metrics), "one of each")
    assert 'outcome="cancelled"' in scraped(server)
    assert count(scraped(server), "bedrock_tools_open") == 0
    assert count(scraped(server), "bedrock_watch_lag_seconds_count") > 0
