"""Plays a demo conversation without interaction, when there is no terminal for a chat."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from bedrock._interrupts import as_ctrl_c
from bedrock.answers import ANSWERED
from bedrock.cli import exit_codes as exits
from bedrock.cli import stdio as streams
from bedrock.cli.display.transcript import Transcript
from bedrock.cli.text.safe_text import SafeText

if TYPE_CHECKING:
    from bedrock import Client, Conversation
    from bedrock.cli.text.output import Write
    from bedrock.cli.text.style import Paint
    from bedrock.conversations import ConversationInfo
    from bedrock.states import Approval

PROMPT = "Hello! Use bash to list the files in this directory, then say in one sentence what you found."

REAL_MODEL = """\
This was the scripted demo model. To talk to a real one, set one of these and start again:
  ANTHROPIC_API_KEY=…                         Anthropic
  OPENAI_API_KEY=…                            OpenAI
  OPENAI_BASE_URL=http://… OPENAI_MODEL=…     any server that speaks like OpenAI
At a terminal, the same command opens a chat."""


def play(client: Client, paint: Paint, write: Write, directory: str, model: str | None, *, again: str) -> int:
    """Send a demo message, answer the agent's approval requests, print everything, and return the exit code.

    If this function is interrupted, the run is cancelled.

    `again` is the command that shows the conversation later, with {} for its slug.
    """
    conversation = client.create(directory, model=model, approval_policy="ask_writes")
    made = conversation.get()
    scripted = is_scripted(client, made)
    write(paint.bold(f"Bedrock plays one conversation, since there is no terminal to chat at: {made.slug}"))
    write(paint.dim(f"model {made.model.removeprefix('models/')} · in {made.working_directory}"))
    transcript = Transcript(paint, write)
    with as_ctrl_c(), conversation.question(PROMPT) as run:
        for event in run:
            streams.ensure_read(sys.stdout)
            if event.approval is not None:
                transcript.ask(event.approval, made.working_directory)
            transcript.show(event)
            if event.approval is not None:
                with suppress(*ANSWERED):
                    _decide(conversation, event.approval, scripted, paint, write)
    write(SafeText())
    if run.stop is None or run.stop.reason != "completed":
        write(paint.bad("The run did not complete."))
        return exits.FAILED
    write(paint.good(f"Completed. To read it again: {again.replace('{}', made.slug)}"))
    if scripted:
        write(SafeText(REAL_MODEL))
    return exits.OK


def is_scripted(client: Client, conversation: ConversationInfo) -> bool:
    """Return whether a conversation uses the demo model."""
    demos = (model.name for model in client.models() if model.protocol == "demo")
    return conversation.model in demos


def _decide(conversation: Conversation, approval: Approval, scripted: bool, paint: Paint, write: Write) -> None:
    """Answer an approval request in place of a user.

    Calls in restricted mode and calls of the demo model are approved; other calls and mode upgrades are denied.
    """
    is_safe = conversation.get().mode == "restricted" or scripted
    if is_safe and approval.tool != "request_mode_upgrade":
        write(paint.careful("  answered automatically, because there is no terminal: yes"))
        conversation.approve(approval)
    else:
        write(paint.careful("  answered automatically, because there is no terminal: no"))
        conversation.deny(approval, "there is no terminal at which to approve this")
