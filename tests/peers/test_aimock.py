"""Agent loops as aimock scripts them, over all three protocols through a whole server: whatever it does, no
conversation is stuck, every history is valid, and nothing is asked that it would complain of."""

import functools
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from bedrock import Client, ContextExhausted, Conversation, Run, RunFailed, v1

from tests.peers.aimock import Aimock
from tests.peers.conftest import Node
from tests.support.chat import assert_valid
from tests.support.patience import only, together, within
from tests.support.server_process import API_KEY, ServerProcess, Servers, texts
from tests.support.watcher import Watcher, checked_slots

MODELS = {"anthropic": "claude-opus-4-5", "openai-chat": "gpt-5", "openai-responses": "o3"}
"""Models that aimock knows to reason."""
WINDOW, ANSWER = 10_000, 1_000
USABLE = WINDOW - ANSWER
CHAOS = {"dropRate": 0.15, "malformedRate": 0.1, "disconnectRate": 0.15, "rateLimitRate": 0.1}
CROWD = 4
"""Conversations per protocol that talk at the same time under faults."""

SIGNED = {"reasoning": "First I look, then I think.", "reasoningSignature": "c2lnbmVk"}
BROKEN = {"id": "call_broken", "name": "bash", "arguments": '{"cmd": "touch touched'}

Watch = Callable[..., Watcher]
_numbers = itertools.count(1)


def said(question: str, when: Mapping[str, Any] = {}, **response: Any) -> dict[str, Any]:
    """A fixture: what is answered to a question, under a condition in aimock's words."""
    return {"match": {"userMessage": question, **when}, "response": response}


CUT = (
    said("Touch", {"hasToolResult": False, "turnIndex": 0}, finishReason="length", toolCalls=[BROKEN], **SIGNED),
    said("Touch", content="It was cut."),
)
"""Played from the start: what comes later must be valid JSON."""


@pytest.fixture(scope="module")
def process(node: Node, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aimock]:
    with Aimock(node.program, tmp_path_factory.mktemp("aimock"), *CUT) as running:
        yield running


@pytest.fixture
def aimock(process: Aimock) -> Aimock:
    process.forget()
    return process


@pytest.fixture(scope="module")
def server(process: Aimock, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with one provider per protocol. With thinking enabled, aimock looks at the signatures it gets back."""
    folder = tmp_path_factory.mktemp("server")
    thinking = "extra_body = { thinking = { type = 'enabled', budget_tokens = 1024 } }\n"
    tables = (
        f'[providers.{protocol}]\nprotocol = "{protocol}"\napi_key = "{API_KEY}"\nmodels = ["{model}"]\n'
        f'base_url = "{process.url}{"" if protocol == "anthropic" else "/v1"}"\n'
        f"context_window = {WINDOW}\nmax_output = {ANSWER}\n{thinking if protocol == 'anthropic' else ''}"
        for protocol, model in MODELS.items()
    )
    (folder / "config.toml").write_text("\n".join(tables))
    servers = Servers()
    yield servers(folder, "--config", str(folder / "config.toml"))
    servers.close()


@pytest.fixture(params=MODELS)
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def conversation(protocol: str, client: Client, tmp_path: Path) -> Conversation:
    return client.create(tmp_path, model=MODELS[protocol])


def fresh(question: str) -> str:
    """A question that nobody has asked yet."""
    return f"{question} #{next(_numbers)}."


def call(tool: str, **arguments: str) -> dict[str, Any]:
    return {"id": f"call_{next(_numbers)}", "name": tool, "arguments": json.dumps(arguments)}


def test_a_loop_with_parallel_calls_and_signed_thinking(
    conversation: Conversation, aimock: Aimock, watch: Watch
) -> None:
    """Two rounds of two calls each; the reasoning goes back with its signature, or aimock refuses the next request."""
    look = fresh("Look around")
    first = [call("bash", cmd="echo one"), call("think", thoughts="a")]
    second = [call("think", thoughts="b"), call("bash", cmd="echo two")]
    aimock.play(
        said(look, {"hasToolResult": False}, content="Looking.", toolCalls=first, **SIGNED),
        said(look, {"toolCallId": first[-1]["id"]}, toolCalls=second, **SIGNED),
        said(look, {"toolCallId": second[-1]["id"]}, content="Done.", **SIGNED),
    )
    watcher = watch(conversation.name)
    assert within(conversation.send(look).answer) == "Done."
    watcher.until("run_stopped")
    checked_slots(watcher.events)
    outputs = [result.output for message in conversation.messages() for result in message.tool_results]
    assert len(outputs) == 4
    assert "one" in outputs[0]
    assert "two" in outputs[3]
    assert len(aimock.journal()) == 3
    assert_valid(message.proto for message in conversation.messages())
    aimock.assert_content()


def test_a_call_that_the_token_limit_cut_is_not_run(conversation: Conversation, aimock: Aimock, tmp_path: Path) -> None:
    assert within(conversation.send("Touch it").answer) == "It was cut."
    assert not (tmp_path / "touched").exists()
    assert_valid(message.proto for message in conversation.messages())
    aimock.assert_content()


@pytest.mark.parametrize(
    "fault", [{"truncateAfterChunks": 3}, {"disconnectAfterMs": 20}], ids=lambda fault: only(list(fault))
)
def test_a_stream_that_is_cut_is_asked_for_again(
    fault: dict[str, int], conversation: Conversation, aimock: Aimock, watch: Watch
) -> None:
    long = "A long text, which comes in many pieces. " * 8
    tell = fresh("Tell me")
    cut = said(tell, {"sequenceIndex": 0}, content=long) | fault | {"latency": 5}
    aimock.play(cut, said(tell, {"sequenceIndex": 1}, content="Told."))
    watcher = watch(conversation.name)
    assert within(conversation.send(tell).answer) == "Told."
    watcher.until("run_stopped")
    assert only(watcher.of("retrying")).attempt == 2
    checked_slots(watcher.events)
    assert_valid(message.proto for message in conversation.messages())
    aimock.assert_content()


def test_under_faults_no_conversation_is_stuck(client: Client, aimock: Aimock, watch: Watch, tmp_path: Path) -> None:
    """A run may fail after its attempts; it ends all the same, once, and the next message is taken."""
    calls = [call("think", thoughts="a"), call("think", thoughts="b")]
    aimock.play(
        said("Calm", content="Calm."),
        said("Go", {"hasToolResult": False}, content="Going.", toolCalls=calls, **SIGNED),
        said("Go", content="Gone."),
    )
    crowd = [client.create(tmp_path, model=model) for model in MODELS.values() for _ in range(CROWD)]
    watchers = [watch(each.name) for each in crowd]
    aimock.chaos(**CHAOS)
    for _ in range(2):
        ends = together(*(functools.partial(reason, each.send("Go on")) for each in crowd))
        assert set(ends) <= {"completed", "error"}, ends
    aimock.chaos()
    for conversation, watcher in zip(crowd, watchers, strict=True):
        assert within(conversation.send("Calm down").answer) == "Calm."
        read_to_the_end(watcher, conversation)
        assert watcher.kinds.count("run_stopped") == 3
        checked_slots(watcher.events)
        assert_valid(message.proto for message in conversation.messages())
    aimock.assert_content(faults=True)


def read_to_the_end(watcher: Watcher, conversation: Conversation) -> None:
    last = conversation.get().revision
    watcher.until(lambda event: event.revision == last)


def reason(run: Run) -> str:
    """How a run ended."""
    stop = within(run.wait)
    assert stop is not None
    return stop.reason


def test_a_window_fills_up_as_usage_tells_and_the_summary_seeds_the_next(
    conversation: Conversation, aimock: Aimock, watch: Watch, tmp_path: Path
) -> None:
    def usage(share: float) -> dict[str, int]:
        tokens = round(USABLE * share)
        return {"prompt_tokens": tokens - 10, "completion_tokens": 10, "total_tokens": tokens}

    aimock.play(
        said("Half", content="Half.", usage=usage(0.5)),
        said("Warn", content="Warned.", usage=usage(0.82)),
        said("Full", toolCalls=[call("bash", cmd="touch touched")], usage=usage(0.93)),
        said("The context of this conversation is full", content="We filled it."),
        said("Next", content="Going on."),
    )
    watcher = watch(conversation.name)
    assert within(conversation.send("Half of it").answer) == "Half."
    assert not conversation.get().context_usage.warning
    assert within(conversation.send("Warn me").answer) == "Warned."
    watcher.until("context_warning")
    assert conversation.get().context_usage.warning
    run = conversation.send("Full now")
    within(run.wait)
    assert run.stop is not None
    assert run.stop.detail == "context_exhausted"
    watcher.state(v1.STATE_KIND_CONTEXT_EXHAUSTED)
    assert len(watcher.of("context_warning")) == 1
    assert conversation.get().continuation_summary == "We filled it."
    assert not (tmp_path / "touched").exists()
    assert_valid(message.proto for message in conversation.messages())
    with pytest.raises(ContextExhausted):
        conversation.send("More?")
    successor = conversation.continue_()
    assert "We filled it." in only(texts([message.proto for message in successor.messages()]))
    assert within(successor.send("Next one").answer) == "Going on."
    assert "We filled it." in json.dumps(aimock.journal()[-1]["body"]["messages"])
    aimock.assert_content()


def test_what_aimock_cannot_fit_is_an_error_and_no_end(conversation: Conversation, aimock: Aimock) -> None:
    """A request that is refused ends the run, and the conversation goes on."""
    with pytest.raises(RunFailed):
        within(conversation.send("Nothing fits this").answer)
    aimock.play(said("Again", content="Here."))
    assert within(conversation.send("Again, please").answer) == "Here."
    assert_valid(message.proto for message in conversation.messages())
