"""Estimates the tokens that a request has used whose answer was cut off, by a cancel or by a limit.

Most providers report usage only at the end of an answer. If the report is missing, the tokens are estimated from the
size of the texts in the request and in its answer. The estimate does not know which input tokens the provider had in
its cache, so all are counted at the full price.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from msgspec.structs import replace

from actors.adapters.llm.protocols.answer_builder import ContentSize, utf8_size
from actors.core.content import Image, Reasoning, Text, ToolSuccess, ToolUse, Usage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from actors.adapters.llm.protocols.answer_builder import AnswerReader, PreparedRequest
    from actors.core.content import Content
    from actors.ports import ModelAnswer, ModelRequest

BYTES_PER_TOKEN = 4
"""A typical number of bytes of UTF-8 per token, for English text and code with the tokenizers of present models."""
IMAGE_TOKENS = 1_600
"""The tokens of an image of the largest size that is sent to models: its longer side has 1,568 pixels."""


def cut_off_usage(prepared: PreparedRequest, reader: AnswerReader) -> Usage | None:
    """Return the usage of a request whose answer was cut off, estimated where the provider has not reported it.

    Returns None if no part of the answer had arrived and no usage was reported.
    """
    told = reader.usage
    if not reader.size.begun or (told is not None and reader.complete):
        return told
    received = _tokens(reader.size.bytes)
    if told is not None:
        return prepared.priced(replace(told, output_tokens=max(told.output_tokens, received)))
    return prepared.priced(Usage(input_tokens=prompt_tokens(prepared.request), output_tokens=received))


def fills_window(prepared: PreparedRequest, answer: ModelAnswer) -> bool:
    """Return whether an answer was cut off because the context window has no room left.

    That is so if its tokens, estimated if the provider reports none, fill the window, or if there was room for none.
    """
    if not answer.truncated:
        return answer.context_full
    if answer.usage is None:
        used = prompt_tokens(prepared.request) + _tokens(ContentSize.of(answer.content).bytes)
        return answer.context_full or used >= prepared.info.usable_window
    nothing = not answer.content and answer.usage.output_tokens <= 1
    return answer.context_full or nothing or answer.usage.context_tokens >= prepared.info.usable_window


def prompt_tokens(request: ModelRequest) -> int:
    """Estimate the input tokens of a request.

    The result is at least the token count that the provider last reported for the conversation (`counted_tokens`).
    """
    texts = [request.system]
    for tool in request.tools:
        texts += (tool.name, tool.description, json.dumps(tool.input_schema))
    images = 0
    for turn in request.turns:
        for block in turn.content:
            texts += _texts(block)
            images += len(_images(block))
    return max(request.counted_tokens, _tokens(sum(map(utf8_size, texts))) + images * IMAGE_TOKENS)


def _texts(block: Content) -> Iterator[str]:
    match block:
        case Text(text=text):
            yield text
        case Reasoning(text=text, raw=raw):
            yield raw or text
        case ToolUse(name=name, input=arguments):
            yield name
            yield arguments
        case Image():
            return
        case _:
            yield block.output


def _images(block: Content) -> tuple[Image, ...]:
    match block:
        case Image():
            return (block,)
        case ToolSuccess(images=images):
            return images
        case _:
            return ()


def _tokens(size: int) -> int:
    return -(-size // BYTES_PER_TOKEN)
