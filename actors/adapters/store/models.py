"""The tables as peewee models: the names, types and order of the columns, which SQLite and PostgreSQL share.

Migrations create the tables, with indexes and constraints. The models are never bound to a database, because `bedrock
move` opens two; instead, `Statement` compiles a query for the database that executes it. A row's digest covers the
columns in the order of the model, so that order never changes. docs/contributing.md explains what a new column needs.
"""

from __future__ import annotations

from typing import Any

from peewee import SQL, AutoField, BigIntegerField, BlobField, Column, Field, Model, TextField


class Timestamp(Field):
    field_type = "TIMESTAMP"


class Boolean(Field):
    field_type = "BOOLEAN"


class Integer(BigIntegerField):
    field_type = "INTEGER"


def _table_name(model: Any) -> str:
    return "conversations" if model.__name__ == "Records" else str(model.__name__).lower()


class Table(Model):
    class Meta:
        table_function = _table_name
        primary_key = False


class Records(Table):
    """The `conversations` table (see ConversationRecord): first the columns that never change, then those that do."""

    id = TextField()
    cwd = TextField()
    parent_conversation_id = TextField(null=True)
    user_initiated = Boolean()
    created_at = Timestamp()
    continued_from = TextField()
    workspace_label = TextField()
    principal = TextField()

    state = TextField()
    state_data = TextField(null=True)
    state_updated_at = Timestamp()
    updated_at = Timestamp()
    archived = Boolean()
    archived_at = Timestamp(null=True)
    mode = TextField()
    model = TextField()
    title = TextField()
    labels = TextField()
    approval_policy = TextField()
    approval_rules = TextField()
    follow_up_policy = TextField()
    budget = TextField()
    continued_by = TextField()
    node = TextField()
    epoch = Integer()
    step = Integer()
    revision = Integer(column_name="last_seq")
    digest = TextField()

    slug = TextField(null=True)
    log_hash = TextField()


class Prompts(Table):
    """A conversation's system prompt. It never changes, unlike the conversation's row, which transitions rewrite."""

    conversation_id = TextField()
    text = TextField()
    text_digest = TextField()


class Profiles(Table):
    """The settings that the creator of a conversation chose for it; a conversation with default settings has no row."""

    conversation_id = TextField()
    profile = TextField()
    profile_digest = TextField()


class Messages(Table):
    """A message. Rows never change; they are deleted only with their conversation."""

    id = TextField()
    conversation_id = TextField()
    sequence_id = Integer()
    message_type = TextField()
    actor_kind = TextField()
    content = TextField()
    display_data = TextField(null=True)
    usage_data = TextField(null=True)
    created_at = Timestamp()
    request_id = TextField()
    attempt = Integer()
    through_sequence = Integer()
    digest = TextField()


class Log(Table):
    """A transition of a conversation: its events, its inputs for replay, and a hash that covers the previous hash.

    Revisions grow with steps, so the primary key sorts by both. A transition without events has the same first revision
    as the next one.
    """

    conversation_id = TextField()
    step = Integer()
    epoch = Integer()
    at = Timestamp()
    first_revision = Integer()
    count = Integer()
    prev_hash = TextField()
    hash = TextField()
    notifications = TextField()
    event = TextField()
    context = TextField(null=True)
    audit = TextField(null=True)


class Runs(Table):
    """The end of a run (the work from a user's message to the end of the answer); kept when the log is pruned."""

    conversation_id = TextField()
    revision = Integer()
    run = TextField()
    reason = TextField()
    detail = TextField()
    message = TextField()
    last_sequence = Integer()
    at = Timestamp()
    digest = TextField()


class Fates(Table):
    """The outcome of a message that waited in the queue of a busy agent; kept when the log is pruned."""

    conversation_id = TextField()
    revision = Integer()
    message_id = TextField()
    delivery = TextField()
    fate = TextField()
    input = TextField()
    run = TextField()
    at = Timestamp()
    digest = TextField()


class Prunings(Table):
    """The position at which an event log begins: after the last pruned row or, in a fork, after the copied history."""

    conversation_id = TextField()
    step = Integer()
    revision = Integer()
    hash = TextField()


class Commands(Table):
    """An accepted command, with the answer to give if it is repeated.

    A create command belongs to a principal; any other command belongs to a conversation.
    """

    conversation_id = TextField(null=True)
    principal = TextField(null=True)
    request_id = TextField()
    body_hash = TextField()
    answer = TextField()
    at = Timestamp()
    digest = TextField()


class Attachments(Table):
    """The bytes of an uploaded image or of its scaled-down copy for models; `id` contains the hash of the upload."""

    conversation_id = TextField()
    id = TextField()
    media_type = TextField()
    data = BlobField()
    width = Integer()
    height = Integer()
    created_at = Timestamp()
    digest = TextField()


class Spendings(Table):
    """A principal's usage for model requests on one day; `day` is counted from 1970-01-01."""

    principal = TextField()
    day = Integer()
    tokens = Integer()
    cost_micros = Integer()


class Deletions(Table):
    """A deleted conversation whose rows have not all been removed.

    `depth` is 0 for the conversation that was deleted, and grows with the nesting of its sub-agents; the deepest are
    removed first. For an unfinished fork, `depth` is the negated number of the server that makes the fork.
    """

    conversation_id = TextField()
    depth = Integer()


class Audit(Table):
    """An audit entry that is not in an event log, for example about a refused call or a conversation's deletion."""

    id = AutoField()
    at = Timestamp()
    outcome = TextField()
    reason = TextField()
    principal = TextField()
    conversation_id = TextField()
    count = Integer()
    origin = TextField()


class Nodes(Table):
    """A server that shares a PostgreSQL database, with only the columns that the store's statements need."""

    incarnation = Integer()
    name = TextField()
    address = TextField()
    dead = Field()


TABLES: tuple[Any, ...] = (
    Records, Prompts, Profiles, Messages, Log, Runs, Fates, Prunings,
    Commands, Attachments, Spendings, Deletions, Audit,
)  # fmt: skip


def _postgres_column(model: Any, name: str) -> Any:
    return Column(model._meta.table, name)


# Columns that only PostgreSQL has and that no digest covers: the top of a conversation's family, the server that owns
# the family, and values that SQLite finds in JSON (who sent a command, and where a fork comes from).
FAMILY, OWNER = _postgres_column(Records, "family"), _postgres_column(Records, "owner")
LOG_PRINCIPAL, FORKED_FROM = _postgres_column(Log, "principal"), _postgres_column(Profiles, "forked_from")
POSTGRES_COLUMNS = {Records: (FAMILY, OWNER), Log: (LOG_PRINCIPAL,), Profiles: (FORKED_FROM,)}

# The condition for conversations that must be recovered after a restart. It is SQL text, not a peewee expression,
# because a partial index is used only if the query contains the index's condition with the same constants, not with
# parameters.
UNSETTLED = (
    "state NOT IN ('idle', 'context_exhausted', 'completed', 'failed') OR (user_initiated = 0 AND state = 'idle')"
)
IS_UNSETTLED = SQL(f"({UNSETTLED})")


def columns(model: Any) -> tuple[str, ...]:
    return tuple(model._meta.sorted_field_names)


def fields(model: Any) -> tuple[Any, ...]:
    return tuple(model._meta.sorted_fields)
