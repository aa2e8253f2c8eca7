"""The slash commands of a chat: /help, /mode, /continue and so on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import cast, get_args

from bedrock import AsyncConversation, Generation
from bedrock._shared.requests import image
from bedrock.cli.chat.session import ChatSession
from bedrock.cli.display.labels import MODES, mode_lines
from bedrock.cli.display.questions import rule_id, rule_title
from bedrock.cli.text.style import one_line
from bedrock.conversations import ConversationInfo
from bedrock.types import ApprovalPolicy, Mode, ReasoningEffort

EFFORTS = get_args(ReasoningEffort)
POLICIES = get_args(ApprovalPolicy)

_KEYS = (
    ("Enter", "send; while the agent works, it reads the message at its next step (steer)"),
    ("Ctrl-J, Alt-Enter", "a new line; also a backslash at the end, then Enter"),
    ("Tab", "complete a command or a path; while the agent works, queue the message for the next run (follow-up)"),
    ("Esc, Ctrl-C", "cancel the run and discard the queue"),
    ("Ctrl-C again, Ctrl-D", "exit"),
    ("Ctrl-O", "show the whole output of the latest tool"),
    ("Ctrl-Z", "suspend; `fg` in the shell resumes"),
    ("y, n", "answer a question; “no, because …” and Enter tells the agent why"),
    (
        "e, b, d, t, s",
        "answer yes, now and always, for the exact command, its beginning, the directory, the tool or the server",
    ),
    ("never, never b", "and Enter: answer no, now and always, for the exact command or what the letter stands for"),
    ("w", "answer a request for unrestricted mode with workspace mode instead"),
)


@dataclass(frozen=True, slots=True)
class Command:
    name: str
    argument: str
    about: str
    run: Callable[[ChatSession, str], Awaitable[None]]

    def takes(self, argument: str) -> bool:
        """Whether the command can be used with this argument, which is "" if the user gave none."""
        if not self.argument:
            return not argument
        return bool(argument) or self.argument.startswith("[")


async def run_command(chat: ChatSession, text: str) -> None:
    """Run the command at the beginning of a text. If the command does not exist, suggest a similar name."""
    name, argument = (*text.lstrip().removeprefix("/").split(maxsplit=1), "", "")[:2]
    argument = argument.strip()
    command = next((each for each in COMMANDS if each.name == ALIASES.get(name, name)), None)
    if command is None:
        alike = get_close_matches(name, [each.name for each in COMMANDS], n=1)
        advice = f"Did you mean /{alike[0]}?" if alike else "/help lists all; type // for a leading /"
        chat.say(chat.paint.careful(f"· unknown command: /{one_line(name, 60)}. {advice}"))
    elif not command.takes(argument):
        chat.say(chat.paint.careful(f"· usage: /{command.name} {command.argument}".rstrip()))
    else:
        await command.run(chat, argument)


async def _help(chat: ChatSession, _: str) -> None:
    rows = (*_KEYS, *((f"/{command.name} {command.argument}", command.about) for command in COMMANDS))
    column = max(len(what) for what, _ in rows) + 1
    for what, about in rows:
        chat.say(chat.paint.text(what.ljust(column), about), indent=column)


async def _quit(chat: ChatSession, _: str) -> None:
    chat.over.set()


async def _output(chat: ChatSession, number: str) -> None:
    if number and not (number.isascii() and number.isdecimal() and int(number)):
        chat.say(chat.paint.careful("· usage: /output, or /output 2 for the tool before the latest one"))
    else:
        chat.show_output(int(number or 1))


async def _queue(chat: ChatSession, text: str) -> None:
    if text:
        await chat.send(text, "follow_up")
        return
    for message in chat.view.queue:
        chat.say(chat.paint.dim(f"· {message.delivery.replace('_', '-')}: “{one_line(message.text, 60)}”"))
    if not chat.view.queue:
        chat.say(chat.paint.dim("· the queue is empty"))


async def _withdraw(chat: ChatSession, message: str) -> None:
    if message:
        await chat.attempt(chat.conversation.withdraw(f"{chat.conversation.name}/messages/{message}"))
    elif chat.view.queue:
        await chat.attempt(chat.conversation.withdraw(chat.view.queue[-1]))
    else:
        chat.say(chat.paint.dim("· the queue is empty"))


async def _approvals(chat: ChatSession, rule: str) -> None:
    """Set the approval policy or revoke a rule; without a valid argument, list both."""
    if rule in POLICIES:
        policy = cast("ApprovalPolicy", rule)
        if await chat.attempt(chat.conversation.update(approval_policy=policy)) is not None:
            chat.say(chat.paint.dim(f"· the policy is {policy}"))
        return
    revoked = await chat.attempt(_revoked(chat, rule)) if rule else None
    if revoked:
        chat.say(chat.paint.dim(f"· revoked: {one_line(rule, 60)}"))
        return
    for line in await chat.attempt(_rule_lines(chat)) or ():
        chat.say(chat.paint.dim(line))


async def _revoked(chat: ChatSession, rule: str) -> bool:
    await chat.conversation.delete_approval_rule(rule)
    return True


async def _rule_lines(chat: ChatSession) -> list[str]:
    policy = (await chat.conversation.get()).approval_policy
    rules = [rule async for rule in chat.conversation.approval_rules()]
    lines = [f"{rule_id(rule)}  {rule.action} {one_line(rule_title(rule), 100)}" for rule in rules]
    choice = f"· the policy is {policy}; choose {_listed(POLICIES)}"
    return [choice + ("; no rules yet" if not lines else ""), *lines]


async def _mode(chat: ChatSession, argument: str) -> None:
    """Set the mode; with "stop" after it, also stop whatever runs with wider rights.

    Without a valid mode, list all modes.
    """
    mode, _, stop = argument.partition(" ")
    if mode not in MODES or stop not in ("", "stop"):
        chat.say(chat.paint.careful(f"· the mode is {chat.view.info.mode}; choose {_listed(list(MODES))}"))
        return
    unchanged = mode == chat.view.info.mode
    changed = await chat.attempt(chat.conversation.set_mode(cast("Mode", mode), stop_running=bool(stop)))
    if changed is not None:
        lines = mode_lines(changed, f"/mode {mode} stop", chat.transcript.call_title)
        for line in lines or ([f"the mode is already {mode}"] if unchanged else []):
            chat.say(chat.paint.careful(f"· {line}"))
        chat.view.jobs.difference_update(changed.ended_jobs)


async def _effort(chat: ChatSession, effort: str) -> None:
    if effort and effort not in EFFORTS:
        chat.say(chat.paint.careful(f"· the effort must be one of {', '.join(EFFORTS)}"))
        return
    if effort:
        how = Generation(cast("ReasoningEffort", effort))
        now = await chat.attempt(chat.conversation.update(generation=how, merge_generation=True))
    else:
        now = await chat.attempt(chat.conversation.get())
    if now is None:
        return
    chosen = now.generation.reasoning_effort if now.generation else ""
    choice = "" if effort else f"; {await _efforts(chat)}"
    chat.say(chat.paint.dim(f"· the effort is {chosen or 'left to the model'}{choice}"))


async def _efforts(chat: ChatSession) -> str:
    model = await chat.model()
    possible = EFFORTS if model is None else model.reasoning_efforts
    return f"choose {_listed(possible)}" if possible else "this model does not support it"


async def _model(chat: ChatSession, model: str) -> None:
    if model:
        if (then := await chat.attempt(chat.conversation.update(model=model))) is not None:
            chat.say(chat.paint.dim(f"· the model is {one_line(then.model.removeprefix('models/'), 100)}"))
        return
    now, models = await chat.attempt(chat.conversation.get()), await chat.attempt(chat.models())
    for each in models or ():
        mark = "●" if now is not None and each.name == now.model else " "
        chat.say(chat.paint.dim(f"{mark} {one_line(each.name.removeprefix('models/'), 100)} ({each.provider})"))


def _listed(names: Sequence[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last


async def _image(chat: ChatSession, path: str) -> None:
    try:
        picture = await asyncio.to_thread(lambda: image(Path(path).expanduser()))
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: "~" with an unknown user
        why = getattr(error, "strerror", None) or error
        chat.say(chat.paint.bad(f"✗ {one_line(path, 60)}: {why}"))
        return
    model = await chat.model()
    name = one_line(model.name.removeprefix("models/"), 60) if model else ""
    if model is not None and not model.images:
        chat.say(chat.paint.bad(f"✗ not attached: model {name} does not accept images (/model chooses another one)"))
        return
    chat.images.append(picture)
    count = len(chat.images)
    what = "an image" if count == 1 else f"{count} images"
    doubt = f"; {name} might not accept images" if model is not None and model.images_assumed else ""
    chat.say(chat.paint.dim(f"· {what} will be sent with your next message{doubt}"))


async def _compact(chat: ChatSession, _: str) -> None:
    if chat.view.state.kind == "context_exhausted":
        await chat.go_on()
    else:
        await chat.compact()


async def _clear(chat: ChatSession, _: str) -> None:
    chat.clear_screen()
    made = await chat.attempt(chat.create_alike())
    if made is not None:
        _move(chat, made, f"started a new conversation: {made.slug} (mode: {made.mode})")


async def _fork(chat: ChatSession, _: str) -> None:
    await _go_on_in(chat, await chat.attempt(chat.conversation.fork()))


async def _rewind(chat: ChatSession, number: str) -> None:
    if number and not (number.isascii() and number.isdecimal() and int(number)):
        chat.say(chat.paint.careful("· usage: /rewind, or /rewind 2 to leave out the last two runs"))
    else:
        await _go_on_in(chat, await chat.attempt(chat.conversation.rewind(int(number or 1))))


async def _go_on_in(chat: ChatSession, fork: AsyncConversation | None) -> None:
    """Continue this chat in a fork of its conversation; do nothing if `fork` is None (the server refused to fork)."""
    now = None if fork is None else await chat.attempt(fork.get())
    if now is not None:
        _move(chat, now, f"forked to {now.slug}; files stay as they are")


def _move(chat: ChatSession, to: ConversationInfo, what: str) -> None:
    its_run = "; its run continues" if chat.view.busy else ""
    back = f"`bedrock chat -r {chat.view.info.slug}` returns to the previous conversation{its_run}"
    chat.say(chat.paint.good(f"· {what} ({back})"))
    chat.move_to(to.name)


COMMANDS = (
    Command("help", "", "list keys and commands", _help),
    Command("queue", "[TEXT]", "queue a message, as Tab does; without TEXT, list the queue", _queue),
    Command("withdraw", "[MESSAGE]", "take back the last queued message, or the one with this id", _withdraw),
    Command("output", "[NUMBER]", "show the whole output of the latest tool; 2: the one before it", _output),
    Command("image", "PATH", "attach an image file to your next message", _image),
    Command(
        "approvals",
        "[POLICY|RULE]",
        "set the approval policy (auto, ask_writes, ask_all), or revoke a rule by its id; without either, list both",
        _approvals,
    ),
    Command(
        "mode",
        "[MODE [stop]]",
        "restricted, workspace or unrestricted: what tools may do; stop ends whatever still has wider rights",
        _mode,
    ),
    Command("model", "[MODEL]", "use another model from the next request on; without MODEL, list the models", _model),
    Command("effort", "[EFFORT]", "set how much the model thinks; without EFFORT, list the choices", _effort),
    Command("decline", "", "decline the question of an MCP server", lambda chat, _: chat.decline()),
    Command("cancel", "", "the same as Esc", lambda chat, _: chat.cancel()),
    Command("kill", "", "cancel the run and stop the background jobs", lambda chat, _: chat.cancel(kill_jobs=True)),
    Command("compact", "", "summarize the conversation, and continue in a new one with the summary", _compact),
    Command("fork", "", "continue in a copy of the conversation as it was when the last run ended", _fork),
    Command(
        "rewind", "[NUMBER]", "continue in a copy without the last NUMBER runs (default 1); files stay as is", _rewind
    ),
    Command("clear", "", "clear the screen, and begin a new conversation with the same directory and settings", _clear),
    Command("continue", "", "continue in a new conversation when the context is used up", lambda chat, _: chat.go_on()),
    Command("quit", "", "exit; runs continue", _quit),
)

ALIASES = {"?": "help", "exit": "quit", "new": "clear", "q": "quit"}
