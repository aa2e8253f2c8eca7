"""A person's answer to what a running tool asks: whether it fits the question."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.messages.refusals import InvalidFieldError
from actors.ports.json_schema import JsonSchema, parse_json

if TYPE_CHECKING:
    from actors.core.states import Question
    from actors.messages.commands import AnswerQuestionCommand

MAX_CONTENT_BYTES = 64 << 10
"""Maximum size of what is filled into a form, as JSON."""

CONTENT = "content"


def filled_in(question: Question, request: AnswerQuestionCommand) -> str:
    """Return what the answer fills into the question's form, as JSON; "" for none. Raises InvalidFieldError."""
    if not request.accept:
        return ""
    if question.url:
        if request.content:
            raise InvalidFieldError(CONTENT, "this question has an address and no form: leave it out")
        return ""
    content = request.content or "{}"
    if len(content.encode()) > MAX_CONTENT_BYTES:
        raise InvalidFieldError(CONTENT, f"must have at most {MAX_CONTENT_BYTES} bytes as JSON")
    if problem := JsonSchema(parse_json(question.schema)).problem(parse_json(content)):
        raise InvalidFieldError(CONTENT, f"does not fit what the question asks for: {problem}")
    return content
