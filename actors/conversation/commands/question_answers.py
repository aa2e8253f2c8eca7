"""Checks a person's answer to a question of a running tool: whether it matches the question's form."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.messages.refusals import InvalidFieldError
from actors.ports.schemas.json_schema import JsonSchema, parse_json

if TYPE_CHECKING:
    from actors.core.states import Question
    from actors.messages.commands import AnswerQuestionCommand

MAX_CONTENT_BYTES = 64 << 10
"""The maximum number of bytes of the answer to a form, as JSON."""

CONTENT = "content"


def filled_in(question: Question, request: AnswerQuestionCommand) -> str:
    """Return the values that the answer gives for the question's form, as JSON; "" if there are none.

    Raises InvalidFieldError if they do not match the form.
    """
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
