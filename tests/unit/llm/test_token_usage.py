"""What a cancelled request has used: what its provider told, and an estimate of what it did not tell in time."""

from typing import Any

import pytest
from msgspec.structs import replace

from actors.adapters.llm.protocols.answer_builder import prompt_tokens
from actors.core.content import Image, Reasoning, Text, ToolSuccess, ToolUse, Usage
from actors.core.history import Turn
from actors.core.thresholds import IMAGE_TOKENS
from actors.ports import CancelToken, ModelAbortedError
from tests.support.model_requests import request, user
from tests.support.scripted_server import named, plain
from tests.unit.llm.test_outcomes import PROTOCOLS, Said, ask_in_memory

SAID = "x" * 402


class Cancelling(Said):
    """Cancels as soon as a text arrives, or the stream begins."""

    def __init__(self, cancel: CancelToken, *, at_once: bool) -> None:
        super().__init__()
        self._cancel, self._at_once = cancel, at_once

    def started(self) -> None:
        super().started()
        if self._at_once:
            self._cancel.cancel()

    def text(self, text: str, *, reasoning: bool = False) -> None:
        super().text(text, reasoning=reasoning)
        self._cancel.cancel()


def began(protocol: str) -> list[bytes]:
    """The events with which a stream begins, usage included where the protocol has it there."""
    match protocol:
        case "anthropic":
            usage = {"input_tokens": 11, "cache_read_input_tokens": 5, "output_tokens": 1}
            return named({"type": "message_start", "message": {"usage": usage}})
        case "openai-chat":
            return plain({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        case _:
            return plain({"type": "response.created", "response": {}})


def texts(protocol: str, reasoning: bool) -> list[bytes]:
    match protocol:
        case "anthropic":
            kind, field = ("thinking", "thinking") if reasoning else ("text", "text")
            return named({"type": "content_block_start", "index": 0, "content_block": {"type": kind, field: SAID}})
        case "openai-chat":
            return plain({"choices": [{"index": 0, "delta": {"reasoning" if reasoning else "content": SAID}}]})
        case _:
            item = {"type": "reasoning" if reasoning else "message", "id": "i"}
            kind = "reasoning_text" if reasoning else "output_text"
            return plain(
                {"type": "response.output_item.added", "output_index": 0, "item": item},
                {"type": f"response.{kind}.delta", "output_index": 0, "item_id": "i", "delta": SAID},
            )


def cut_off(protocol: str, pieces: list[bytes], *, at_once: bool = False) -> Usage | None:
    cancel = CancelToken()
    with pytest.raises(ModelAbortedError) as aborted:
        ask_in_memory(protocol, pieces, Cancelling(cancel, at_once=at_once), cancel)
    usage: Usage | None = aborted.value.usage
    return usage


@PROTOCOLS
@pytest.mark.parametrize("reasoning", [False, True])
def test_the_prompt_and_what_has_arrived_count_although_the_provider_tells_it_at_the_end(
    protocol: str, reasoning: bool
) -> None:
    usage = cut_off(protocol, [*began(protocol), *texts(protocol, reasoning)])
    assert usage is not None
    prompt = prompt_tokens(request())
    assert prompt > 0
    told = (11, 5) if protocol == "anthropic" else (prompt, 0)
    assert (usage.input_tokens, usage.cache_read_tokens, usage.output_tokens) == (*told, 101)
    assert usage.cost_micros > 0


@PROTOCOLS
def test_nothing_counts_before_an_answer_has_begun(protocol: str) -> None:
    cancel = CancelToken()
    cancel.cancel()
    with pytest.raises(ModelAbortedError) as aborted:
        ask_in_memory(protocol, began(protocol), Said(), cancel)
    assert aborted.value.usage is None


def test_what_the_provider_has_told_of_a_whole_answer_is_not_estimated_again() -> None:
    usage = {"prompt_tokens": 7, "completion_tokens": 3}
    end = plain({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": usage}, "[DONE]")
    cancel = CancelToken()

    class Late(Cancelling):
        def text(self, text: str, *, reasoning: bool = False) -> None:
            Said.text(self, text, reasoning=reasoning)

        def flush(self) -> None:
            cancel.cancel()

    pieces = [b"".join([*began("openai-chat"), *texts("openai-chat", False), *end[:1]]), *end[1:]]
    with pytest.raises(ModelAbortedError) as aborted:
        ask_in_memory("openai-chat", pieces, Late(cancel, at_once=False), cancel)
    assert aborted.value.usage is not None
    assert (aborted.value.usage.input_tokens, aborted.value.usage.output_tokens) == (7, 3)


def test_a_prompt_counts_by_all_that_is_in_it_and_at_least_what_the_provider_counted_before() -> None:
    image = Image("a", "image/png", 10, 10)
    empty = prompt_tokens(request(user("")))
    calls = Turn("assistant", (Reasoning("t" * 40, raw="r" * 400), ToolUse("t1", "bash", "i" * 396), Text("a" * 400)))
    results: Any = Turn("user", (ToolSuccess("t1", "é" * 200, (image,)), Text("b" * 400), image))
    full = prompt_tokens(request(calls, results))
    assert full - empty == 500 + 2 * IMAGE_TOKENS
    assert prompt_tokens(replace(request(calls, results), counted_tokens=full + 9)) == full + 9
