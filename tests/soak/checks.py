"""What must be true when all is quiet, through public calls only.

Nothing acknowledged is lost, doubled, out of order or left running; every conversation is proven and replayed.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from bedrock import Client, Conversation, v1
from bedrock.errors import BedrockError, NotFound
from msgspec import Struct, field

from tests.soak.journal import Entry, read_all
from tests.soak.provider import TOKEN
from tests.soak.raw_client import fingerprint
from tests.support.chat import assert_valid
from tests.support.patience import within

RESTING = ("idle", "error", "context_exhausted")


class Journaled(Struct):
    """What the journals say of one conversation."""

    tokens: dict[str, Entry] = field(default_factory=dict)
    """Messages that were accepted, in the order in which they were."""
    said: set[str] = field(default_factory=set)
    """Tokens whose answer was seen; which message they are nobody was told."""
    refused: dict[str, str] = field(default_factory=dict)
    """Tokens that must not be there, and why they were refused."""
    events: dict[int, str] = field(default_factory=dict)
    title: str = ""
    mode: str = ""
    deleting: bool = False
    deleted: bool = False


class Checked(Struct):
    """What was looked at, and what was wrong."""

    conversations: int = 0
    sub_agents: int = 0
    accepted: Counter[str] = field(default_factory=Counter)
    """Messages by kind of client."""
    events: int = 0
    """That watchers were told and that were compared."""
    deleted: int = 0
    steps: int = 0
    """Replayed."""
    wrong: list[str] = field(default_factory=list)


def check(client: Client, journals: Path, ledger: Path, round_number: int | None = None) -> Checked:
    """Look at everything that the clients were told; only at one round's if its number is given."""
    found = Checked()
    told = _read(journals, found, round_number)
    for name, each in told.items():
        try:
            within(lambda name=name, each=each: _check(client.conversation(name), each, found), 120)  # type: ignore[misc]
        except (AssertionError, BedrockError) as error:
            found.wrong.append(f"{name}: {type(error).__name__}: {str(error)[:300]}")
    gone = {name for name, each in told.items() if each.deleted}
    listed = {each.name for each in client.conversations(archived=None)}
    found.wrong += [f"{name}: listed, though deleted" for name in listed & gone]
    found.wrong += [f"tool call {line} ran twice" for line, count in _calls(ledger) if count > 1]
    return found


def _read(journals: Path, found: Checked, round_number: int | None) -> dict[str, Journaled]:
    told: dict[str, Journaled] = defaultdict(Journaled)
    for client, entries in read_all(journals):
        kind, _, number = client.rpartition("-")
        if round_number is not None and int(number) != round_number:
            continue
        for entry in entries:
            _note(told, entry, found)
            found.accepted[kind] += entry["kind"] in ("accepted", "said")
    return told


def _note(told: dict[str, Journaled], entry: Entry, found: Checked) -> None:
    each = told[entry["conversation"]] if entry.get("conversation") else Journaled()
    match entry["kind"]:
        case "accepted":
            each.tokens[entry["token"]] = entry
        case "said":
            each.said.add(entry["token"])
        case "refused":
            each.refused[entry["token"]] = entry["reason"]
        case "told":
            before = each.events.setdefault(entry["revision"], entry["what"])
            if before != entry["what"]:
                found.wrong.append(f"{entry['conversation']}: revision {entry['revision']} was told in two ways")
        case "titled":
            each.title = entry["title"]
        case "titling":
            each.title = ""
        case "mode":
            each.mode = entry["mode"]
        case "deleting":
            each.deleting = True
        case "deleted":
            each.deleted = True
        case "fault" | "broken":
            found.wrong.append(f"a client was told of a fault: {entry['error']}")
        case _:
            pass


def _check(conversation: Conversation, told: Journaled, found: Checked) -> None:
    if told.deleting:
        _check_deleted(conversation, told, found)
        return
    found.conversations += 1
    conversation.cancel(discard_queued=True, kill_jobs=True)
    for _ in conversation.events(until_settled=True, omit_deltas=True):
        pass
    record = conversation.get()
    assert record.state.kind in RESTING, f"left running: {record.state.kind}"
    assert not told.title or record.title == told.title, f"title {record.title!r}, told {told.title!r}"
    messages = [message.proto for message in conversation.messages()]
    _check_messages(messages, told, {each.message.name for each in conversation.queue(include_settled=True)})
    _check_events(conversation, told, record.revision, found)
    _prove(conversation, found)
    for child in conversation.sub_agents():
        found.sub_agents += 1
        assert child.state.kind in ("completed", "failed"), "a sub-agent was left running"
        _prove(conversation.__class__(conversation._transport, child.name), found)


def _check_deleted(conversation: Conversation, told: Journaled, found: Checked) -> None:
    try:
        conversation.get()
    except NotFound:
        found.deleted += 1
        return
    assert not told.deleted, "deleted, and still there"


def _check_messages(messages: list[v1.Message], told: Journaled, queued: set[str]) -> None:
    assert [message.sequence for message in messages] == list(range(1, len(messages) + 1)), "a gap"
    assert_valid(messages)
    users = [message for message in messages if message.role == v1.ROLE_USER]
    stored = {message.name: message.sequence for message in users}
    counts = Counter(token for message in users for token in _tokens(message))
    assert not [token for token, count in counts.items() if count > 1], "a message is there twice"
    lost = [entry["message"] for entry in told.tokens.values() if entry["message"] not in stored.keys() | queued]
    assert not lost, f"lost: {lost}"
    assert told.said <= counts.keys(), f"lost: {told.said - counts.keys()}"
    assert not told.refused.keys() & counts.keys(), f"refused and there: {told.refused.keys() & counts.keys()}"
    for delivery in ("direct", "steer", "follow_up"):
        order = [
            stored[entry["message"]]
            for entry in told.tokens.values()
            if entry["delivery"] == delivery and entry["message"] in stored
        ]
        assert order == sorted(order), f"{delivery} messages are out of order"


def _check_events(conversation: Conversation, told: Journaled, revision: int, found: Checked) -> None:
    """The log has every revision once, and watchers were told the same."""
    log: dict[int, str] = {}
    with conversation.events(0, omit_deltas=True, until_settled=True) as events:
        for event in events:
            if event.proto.revision:
                assert event.proto.revision not in log, "a revision twice"
                log[event.proto.revision] = fingerprint(event.proto)
    assert list(log) == list(range(1, len(log) + 1)), "revisions are missing"
    assert len(log) >= revision, "revisions are missing at the end"
    found.events += len(told.events)
    assert sorted(told.events) == list(range(1, len(told.events) + 1)), "a watcher missed revisions"
    other = [number for number, what in told.events.items() if log.get(number) != what]
    assert not other, f"watchers were told otherwise at {other[:5]}"


def _prove(conversation: Conversation, found: Checked) -> None:
    wrong = conversation.verify()
    assert not wrong, f"verify: {wrong[:3]}"
    for step in conversation.replay():
        found.steps += 1
        assert not step.difference, f"replay: step {step.step}: {step.difference}"


def _tokens(message: v1.Message) -> Iterable[str]:
    return (found for block in message.content for found in TOKEN.findall(block.text))


def _calls(ledger: Path) -> Iterator[tuple[str, int]]:
    """Tool calls that left a line, and how often."""
    lines = ledger.read_text().split() if ledger.exists() else []
    yield from Counter(lines).items()
