"""Commands that create, change, fork, continue and delete conversations, cancel their runs, and edit their queues."""

from __future__ import annotations

import sys
from itertools import islice
from typing import Any

import click

from bedrock import Conversation, Generation
from bedrock.cli import arguments
from bedrock.cli import exit_codes as exits
from bedrock.cli.arguments import on_conversation, option
from bedrock.cli.display.labels import QUEUE_COLUMNS, cancel_lines, counted, in_words, mode_lines
from bedrock.cli.text.output import JSON_OPTION, print_listing, print_text
from bedrock.conversations import ConversationInfo
from bedrock.types import ApprovalPolicy, Mode


@click.command()
@arguments.creating_options
@arguments.generation_options
@click.pass_context
def new(ctx: click.Context, /, **creating: Any) -> None:
    """Create a conversation and print its slug. Nothing runs until a message is sent: `bedrock ask -r SLUG "…"`."""
    print_text(arguments.create_conversation(arguments.connect(ctx), **creating).get().slug)


@on_conversation
@option("--discard-queued", "Discard queued follow-ups too.", is_flag=True)
@option("--kill-jobs", "Stop the background jobs of earlier calls too.", is_flag=True)
def cancel(conversation: Conversation, discard_queued: bool, kill_jobs: bool) -> None:
    """Cancel the run of a conversation.

    A request to the model is aborted, and a running tool call is stopped with all its processes. Background jobs that
    earlier bash calls started continue, and are listed; --kill-jobs stops them, even if there is no run.
    """
    receipt = conversation.cancel(discard_queued=discard_queued, kill_jobs=kill_jobs, reason="bedrock cancel")
    stopped = [
        *(["a request to the model"] if receipt.llm_request_id else []),
        *([counted(len(receipt.tool_use_ids), "tool call")] if receipt.tool_use_ids else []),
        *([counted(len(receipt.sub_agents), "sub-agent")] if receipt.sub_agents else []),
        *([counted(len(receipt.ended_jobs), "background job")] if receipt.ended_jobs else []),
    ]
    if not receipt.no_op:
        print_text("cancelled" + (": " + ", ".join(stopped) if stopped else ""))
    for line in cancel_lines(receipt, f"bedrock cancel --kill-jobs {_name(conversation)}", jobs=kill_jobs):
        print_text(line)
    for steer in receipt.returned_steers:
        print_text(f"not delivered: {steer.message.text}")
    if receipt.run and receipt.state.run not in ("", receipt.run):
        drop = f"bedrock cancel --discard-queued {_name(conversation)}"
        print_text(f"a queued follow-up is now running; to drop queued messages too: {drop}")


@on_conversation
@click.argument("mode", required=False, metavar="[MODE]", type=arguments.MODE)
@option("--stop-running", "Stop everything that still runs with more rights than the mode allows.", is_flag=True)
def mode(conversation: Conversation, mode: Mode | None, stop_running: bool) -> None:
    """Show or set the mode of a conversation: what its tools may do.

    \b
    restricted     they can read, but change nothing, and have no network
    workspace      they can also change files below the working directory
    unrestricted   they have all rights of the server's user

    A new mode applies from the next tool call on, even during a run. A running call, background jobs and programs of
    MCP servers keep the rights that they were started with, and are listed; --stop-running stops them, now or when you
    repeat the command, and the run continues without the call. The agent is informed. A server that cannot enforce a
    mode refuses it; `bedrock doctor` says why.
    """
    if mode is None:
        if stop_running:
            raise click.UsageError("--stop-running requires a mode")
        now = conversation.get()
        print_text(f"{now.slug} is {now.mode}")
        return
    changed = conversation.set_mode(mode, stop_running=stop_running)
    slug = changed.conversation.slug
    print_text(f"{slug} is {changed.conversation.mode}")
    for line in mode_lines(changed, f"bedrock mode --stop-running {slug} {mode}"):
        print_text(line)


@on_conversation
def compact(conversation: Conversation) -> None:
    """Summarize a conversation now, and continue in a new one.

    The new one begins with the summary. The summarized one becomes read-only. If the summary fails, the conversation is
    unchanged. Ctrl-C only stops the wait; `bedrock cancel` stops the summary.
    """
    conversation.trigger_continuation()
    events = conversation.events(until_settled=True, omit_deltas=True, recent_messages=0)
    messages = [event.message for event in events if event.message is not None]
    now = conversation.get()
    if now.state.kind != "context_exhausted":
        why = next((message.text for message in messages if message.role == "error"), "the summary was cancelled")
        hint = f"Continue with `bedrock chat -r {now.slug}`."
        raise exits.CommandError(f"{now.slug} was not summarized: {why}", hint)
    _tell_successor(conversation.continue_().get())


@on_conversation
@option("-m --model", "The model; see `bedrock models`.", metavar="MODEL", shell_complete=arguments.complete_model)
@option("--approval-policy", "When tools need approval.", type=arguments.POLICY)
@arguments.generation_options
@option("--model-defaults", "Reset effort, temperature and token limit to the model's defaults.", is_flag=True)
@option(
    "--auto-continue/--no-auto-continue",
    "Whether to continue in a successor when the context is used up.",
    default=None,
)
def update(
    conversation: Conversation,
    *,
    model: str | None,
    approval_policy: ApprovalPolicy | None,
    generation: Generation | None,
    model_defaults: bool,
    auto_continue: bool | None,
) -> None:
    """Change the model, the approval policy or the generation settings of a conversation.

    Generation settings apply from the next model request on; the model can be changed only between runs.
    """
    changes = (generation, model, approval_policy, auto_continue)
    if all(each is None for each in changes) and not model_defaults:
        raise click.UsageError("nothing to change; give an option such as --effort high")
    if generation is not None and model_defaults:
        raise click.UsageError(
            "--model-defaults cannot be combined with --effort, --temperature or --max-output-tokens"
        )
    changed = conversation.update(
        model=model, approval_policy=approval_policy, generation=Generation() if model_defaults else generation,
        merge_generation=generation is not None, auto_continue=auto_continue,
    )  # fmt: skip
    settings = f"{changed.model.removeprefix('models/')}{in_words(changed.generation)}"
    goes_on = ", continues automatically when its context is used up" if changed.auto_continue else ""
    print_text(f"{changed.slug}: {settings}, approvals: {changed.approval_policy}{goes_on}")


@on_conversation
@option(
    "--at cycle", "The last run of the fork, as `bedrock cycles` lists it. [the last one]", metavar="RUN", default=""
)
@option("--back", "Omit this many of the latest runs.", metavar="N", type=click.IntRange(1))
def fork(conversation: Conversation, *, cycle: str, back: int | None) -> None:
    """Fork a conversation: create a new one with its history up to the end of a run.

    The fork has the same settings; the original is unchanged, and may be busy. Files are not restored; the queue and
    background jobs are not copied.
    """
    if cycle and back:
        raise click.UsageError("--at and --back are mutually exclusive")
    made = conversation.rewind(back) if back else conversation.fork(cycle)
    its_slug = made.get().slug
    print_text(f"{its_slug} continues from there (files stay as they are): `bedrock chat -r {its_slug}`")


@on_conversation
@option("--without-summary", "Begin without the summary.", is_flag=True)
def continue_(conversation: Conversation, without_summary: bool) -> None:
    """Continue in a new conversation when the context is used up. By default, that one begins with the summary."""
    successor = conversation.continue_(include_summary=not without_summary).get()
    _tell_successor(successor)


@on_conversation
@option("--slug", "The new slug.")
@option("--title", "The new title.")
def rename(conversation: Conversation, slug: str | None, title: str | None) -> None:
    """Change the slug or title of a conversation."""
    if slug is None and title is None:
        raise click.UsageError("give --slug, --title or both")
    now = conversation.update(slug=slug, title=title)
    print_text(f"{now.slug}  {now.title}".rstrip())


@on_conversation
@option("--undo", "Unarchive it.", is_flag=True)
def archive(conversation: Conversation, undo: bool) -> None:
    """Archive a conversation: it leaves the list, but can still be read.

    Its background jobs end; a busy conversation cannot be archived.
    """
    now = conversation.unarchive() if undo else conversation.archive()
    print_text(f"{now.slug} is {'active' if undo else 'archived'}")


@on_conversation
@option("-y --yes", "Delete without asking; required if there is no terminal.", is_flag=True)
@option("-f --force", "Cancel the run first, and delete without asking.", is_flag=True)
def rm(conversation: Conversation, *, yes: bool, force: bool) -> None:
    """Delete a conversation and all its data.

    Its background jobs end; files in its directory stay. Refused during a run or while a question is open, unless
    --force is given. Asks first at a terminal; without one, --yes or --force is required.
    """
    if not (yes or force or sys.stdin.isatty()):
        hint = "--yes deletes without asking; --force also cancels the run."
        raise exits.CommandError("no terminal to confirm the deletion", hint, exits.USAGE)
    slug = conversation.get().slug
    if not (yes or force):
        click.confirm(f"Delete {slug} permanently?", abort=True)
    for warning in conversation.delete(force=force):
        print_text(f"warning: {warning}", err=True)
    print_text(f"deleted {slug}")


def _tell_successor(successor: ConversationInfo) -> None:
    print_text(f"{successor.slug} continues from here: `bedrock chat -r {successor.slug}`")


def _name(conversation: Conversation) -> str:
    return conversation.name.removeprefix("conversations/")


@on_conversation
@option("--all everything", "Include messages that have left the queue, and what became of them.", is_flag=True)
@option("-n --limit", "Show only the latest N messages.", type=click.IntRange(1), default=50, show_default=True)
@JSON_OPTION
def queue(conversation: Conversation, everything: bool, limit: int, output: str) -> None:
    """List the queued messages of a conversation."""
    entries = conversation.queue(include_settled=everything, newest_first=True)
    none = "Nothing has been queued yet." if everything else "The queue is empty."
    print_listing(list(islice(entries, limit))[::-1], output, QUEUE_COLUMNS, none=none)


@on_conversation
@click.argument("messages", nargs=-1)
@option("--all everything", "Withdraw all queued messages.", is_flag=True)
def withdraw(conversation: Conversation, messages: tuple[str, ...], everything: bool) -> None:
    """Withdraw messages from the queue, and print their text.

    Without MESSAGES, the latest one is withdrawn. `bedrock queue` shows the ids of messages.
    """
    if messages and everything:
        raise click.UsageError("give messages or --all, not both")
    chosen = [message if "/" in message else f"{conversation.name}/messages/{message}" for message in messages]
    if not chosen:
        waiting = [entry.message.name for entry in conversation.queue(newest_first=True)]
        chosen = waiting if everything else waiting[:1]
    if not chosen:
        print_text("the queue is empty", err=True)
    for each in chosen:
        print_text(f"withdrawn: {conversation.withdraw(each).message.text}")
