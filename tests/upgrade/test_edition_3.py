"""Logs written by the third edition of the rules replay as they were written, with every text that it could write.

The database was made with code of which that edition was the newest, and cannot be made again.
"""

from __future__ import annotations

import lzma
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from actors.adapters.store.sqlite.engine import FILE
from actors.adapters.store.sqlite.store import open_store
from actors.core.context import Mode, Rules
from actors.core.steps import texts
from actors.maintenance.verify import findings
from actors.ports import ConversationRecord, Store, StoredTransition
from tests.support.replaying import differences

DATABASE = Path(__file__).with_name("edition_3.db.xz")
STEPS = (
    texts.BEFORE_ANSWERING,
    texts.WHILE_ANSWERING,
    texts.WHILE_SUB_AGENTS_WORKED,
    texts.WHILE_SUMMING_UP,
    texts.after_step(1),
    texts.while_asking(["patch"]),
    texts.while_running("bash"),
)
IN_LOGS = (
    *(template.format(step=step) for template in (texts.RUN_CANCELLED, texts.RUN_CUT_OFF) for step in STEPS),
    *texts.MODES.values(),
    *texts.STOPPED_FOR_MODE.values(),
    texts.CANCELLED,
    texts.SKIPPED,
    texts.INTERRUPTED,
    texts.DENIED,
    texts.OTHER_DENIED,
    texts.CUT_OFF,
    texts.CONTEXT_LIMIT,
    texts.TURN_LIMIT,
    texts.BAD_SUBMISSION,
    texts.CANNOT_ASK,
    texts.NOT_OFFERED,
    texts.NOT_IN_MODE[Mode.RESTRICTED],
    texts.BAD_OUTPUT,
    texts.OUTPUT_ACCEPTED,
    texts.OUTPUT_REFUSED,
    texts.FAULT,
    texts.SUBMITTED,
    texts.TOOL_ABORTED,
    texts.NO_TASKS,
    texts.EMPTY_ANSWER,
    texts.LLM_ABORTED,
    texts.RESTRICTED_FOR_GOOD,
    texts.MCP_RESTARTED.format(servers="files, github"),
    texts.FORKED,
    texts.GRACE,
    texts.NUDGE,
    texts.SUB_AGENT_INTERRUPTED,
    texts.SUB_AGENT_EXHAUSTED,
    texts.SUB_AGENT_TURN_LIMIT,
    texts.SUB_AGENT_NO_RESULT,
    texts.SUB_AGENT_BUDGET,
    texts.AGENT_TIMED_OUT,
    texts.FIRST_FALLBACK_SUMMARY,
    texts.denied("not that file"),
    texts.client_silent(60),
    texts.denied_by("a rule of the server denies the tool bash"),
    texts.denied_by("a rule of this conversation denies the tool read_file"),
    texts.output_misfit("1 is not a string"),
    texts.output_misfit(texts.OUTPUT_MISSING),
    texts.output_nudge(texts.OUTPUT_MISSING),
    texts.output_invalid("2 is not a string"),
    texts.sub_agent_cancelled(""),
    texts.sub_agent_cancelled("not needed"),
    texts.round_cap(6),
    texts.budget_reached("10 tokens per run"),
    texts.quota_reached("the quota of 10 tokens per day"),
    texts.failed_after(1, "overloaded"),
    texts.failed_after(3, "overloaded"),
    texts.failed_after(3, "no sandbox"),
    texts.authentication_failed("no such key"),
    texts.retry_after_too_long(3_600, 60, "slow down"),
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    folder = tmp_path_factory.mktemp("edition-3")
    folder.chmod(0o700)
    (folder / FILE).touch(0o600)
    (folder / FILE).write_bytes(lzma.decompress(DATABASE.read_bytes()))
    with closing(open_store(folder)) as opened:
        yield opened


@pytest.fixture(scope="module")
def records(store: Store) -> list[ConversationRecord]:
    """Every conversation and sub-agent."""
    found = map(store.load, store.prunable(before=2**53, keep=0, limit=1_000))
    return [record for record in found if record is not None]


def log(store: Store, record: ConversationRecord) -> tuple[StoredTransition, ...]:
    return tuple(store.transitions(record.id, after_step=0, limit=10_000))


def test_every_log_replays_as_it_was_written(store: Store, records: list[ConversationRecord]) -> None:
    assert len(records) == 60
    for record in records:
        assert differences(store, record) == [], record.id
        assert findings(store, record) == (), record.id


def test_every_log_names_the_third_edition(store: Store, records: list[ConversationRecord]) -> None:
    contexts = [row.context for record in records for row in log(store, record) if row.context]
    assert {msgspec.json.decode(context)["rules"] for context in contexts} == {Rules.OWN_TOOLS}


def test_every_text_of_the_third_edition_is_in_a_log(store: Store, records: list[ConversationRecord]) -> None:
    rows = (row for record in records for row in log(store, record))
    logged = msgspec.json.encode([row.notifications for row in rows]).decode()
    assert [text for text in IN_LOGS if msgspec.json.encode(text).decode()[1:-1] not in logged] == []
