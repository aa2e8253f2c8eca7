"""The SQLite tables as peewee models, for tests, which compare them with the migrations and read or damage rows.

The tables `conversations` and `messages` have the columns that the specification names, and a few more. Properties
without a column are derived, or are part of the JSON in `state_data`, `content`, `usage_data` and `display_data`.
"""

from __future__ import annotations

from peewee import (
    SQL,
    AutoField,
    BigIntegerField,
    BlobField,
    BooleanField,
    Check,
    CompositeKey,
    Field,
    ForeignKeyField,
    Model,
)
from peewee import TextField as Text

from actors.adapters.store.sql.queries import UNSETTLED


class Timestamp(Field):
    """A time in milliseconds since 1970 (UTC), in a column with the SQL type TIMESTAMP."""

    field_type = "TIMESTAMP"


class Flag(BooleanField):
    """A truth value, in a column with the SQL type BOOLEAN."""

    field_type = "BOOLEAN"


class Count(BigIntegerField):
    """A number that is never NULL and is 0 by default."""

    field_type = "INTEGER"

    def __init__(self) -> None:
        super().__init__(constraints=[SQL("DEFAULT 0")])


def _text(default: str) -> Text:
    return Text(constraints=[SQL(f"DEFAULT '{default}'")])


class ConversationTable(Model):
    """A conversation without its messages and its event log."""

    id = Text(primary_key=True)
    slug = Text(null=True)
    cwd = Text()
    parent_conversation = ForeignKeyField("self", column_name="parent_conversation_id", null=True, on_delete="CASCADE")
    user_initiated = Flag()
    state = _text("idle")
    state_data = Text(null=True)
    state_updated_at = Timestamp()
    created_at = Timestamp()
    updated_at = Timestamp()
    archived = Flag(constraints=[SQL("DEFAULT FALSE")])
    archived_at = Timestamp(null=True)
    mode = _text("restricted")
    model = _text("")
    title = _text("")
    labels = _text("{}")
    approval_policy = _text("auto")
    approval_rules = _text("[]")
    follow_up_policy = _text("always")
    budget = _text("{}")
    continued_from = _text("")
    continued_by = _text("")
    node = _text("")
    epoch = Count()
    step = Count()
    last_seq = Count()
    digest = _text("")
    log_hash = _text("")
    workspace_label = _text("")
    principal = _text("")

    class Meta:
        """Options of peewee."""

        table_name = "conversations"


def _index_of_list(name: str, *columns: Field) -> None:
    """Add an index for lists of a principal's top-level conversations that are ordered by these columns."""
    top_level = SQL("parent_conversation_id IS NULL")
    index = ConversationTable.index(
        ConversationTable.principal, *columns, ConversationTable.id, where=top_level, name=name
    )
    ConversationTable.add_index(index)


_index_of_list("conversations_listed", ConversationTable.archived, ConversationTable.updated_at)
_index_of_list(
    "conversations_of_directory", ConversationTable.archived, ConversationTable.cwd, ConversationTable.updated_at
)
_index_of_list("conversations_created", ConversationTable.created_at)
ConversationTable.add_index(
    ConversationTable.index(ConversationTable.principal, ConversationTable.slug, unique=True, name="conversations_slug")
)
ConversationTable.add_index(
    ConversationTable.index(ConversationTable.id, where=SQL(UNSETTLED), name="conversations_unsettled")
)


def _owner() -> ForeignKeyField:
    """Return a column with the id of the conversation to which a row belongs.

    The column has no index of its own, because the primary key or another index begins with it.
    """
    return ForeignKeyField(
        ConversationTable, column_name="conversation_id", on_delete="CASCADE", index=False, backref="+"
    )


class PromptTable(Model):
    """A conversation's system prompt, which never changes.

    It has a table of its own, since transitions rewrite the conversation's row.
    """

    conversation = ForeignKeyField(
        ConversationTable, column_name="conversation_id", on_delete="CASCADE", primary_key=True, backref="+"
    )
    text = Text()
    text_digest = _text("")

    class Meta:
        """Options of peewee."""

        table_name = "prompts"


class ProfileTable(Model):
    """The settings that the creator of a conversation chose for it; a conversation with default settings has no row."""

    conversation = ForeignKeyField(
        ConversationTable, column_name="conversation_id", on_delete="CASCADE", primary_key=True, backref="+"
    )
    profile = Text()
    profile_digest = _text("")

    class Meta:
        """Options of peewee."""

        table_name = "profiles"


class MessageTable(Model):
    """A message. Rows are never changed; they are deleted only with their conversation."""

    id = Text(primary_key=True)
    conversation = _owner()
    sequence_id = BigIntegerField()
    message_type = Text(constraints=[Check("message_type IN ('user', 'agent', 'tool', 'system', 'error')")])
    actor_kind = Text(constraints=[Check("actor_kind IN ('human', 'llm_agent', 'system')")])
    content = Text()
    display_data = Text(null=True)
    usage_data = Text(null=True)
    created_at = Timestamp()
    request_id = _text("")
    attempt = Count()
    through_sequence = Count()
    digest = _text("")

    class Meta:
        """Options of peewee."""

        table_name = "messages"
        indexes = ((("conversation", "sequence_id"), True),)


class LogTable(Model):
    """One transition of a conversation: its events, its inputs for replay, and its hash.

    The hash covers the hash of the previous row. Revisions grow with the steps, so the primary key sorts rows by
    revision and by step at once. A transition without events has the same first revision as the next transition.
    """

    conversation = _owner()
    step = BigIntegerField()
    epoch = BigIntegerField()
    at = Timestamp()
    first_revision = BigIntegerField()
    count = BigIntegerField()
    prev_hash = Text()
    hash = Text()
    notifications = Text()
    event = Text()
    context = Text(null=True)
    audit = Text(null=True)

    class Meta:
        """Options of peewee."""

        table_name = "log"
        primary_key = CompositeKey("conversation", "first_revision", "step")


class RunTable(Model):
    """How a run (the work from a user's message to the end of the answer) ended.

    The row remains when the event log is pruned.
    """

    conversation = _owner()
    revision = BigIntegerField()
    run = Text()
    reason = Text()
    detail = Text()
    message = Text()
    last_sequence = BigIntegerField()
    at = Timestamp()
    digest = _text("")

    class Meta:
        """Options of peewee."""

        table_name = "runs"
        primary_key = CompositeKey("conversation", "revision")


class FateTable(Model):
    """What became of a message that waited in the queue of a busy agent.

    The row remains when the event log is pruned.
    """

    conversation = _owner()
    revision = BigIntegerField()
    message_id = Text()
    delivery = Text()
    fate = Text()
    input = Text()
    run = Text()
    at = Timestamp()
    digest = _text("")

    class Meta:
        """Options of peewee."""

        table_name = "fates"
        primary_key = CompositeKey("conversation", "revision")


class PruningTable(Model):
    """Where an event log begins: after the last row that was pruned or, for a fork, after the copied history."""

    conversation = ForeignKeyField(
        ConversationTable, column_name="conversation_id", on_delete="CASCADE", primary_key=True, backref="+"
    )
    step = BigIntegerField()
    revision = BigIntegerField()
    hash = Text()

    class Meta:
        """Options of peewee."""

        table_name = "prunings"


class CommandTable(Model):
    """An accepted command of a conversation or, for a create command, of a principal.

    With this row, a command that is sent again is recognised and gets the same answer.
    """

    conversation = ForeignKeyField(
        ConversationTable, column_name="conversation_id", on_delete="CASCADE", index=False, null=True, backref="+"
    )
    principal = Text(null=True)
    request_id = Text()
    body_hash = Text()
    answer = Text()
    at = Timestamp()
    digest = _text("")

    class Meta:
        """Options of peewee."""

        table_name = "commands"
        primary_key = False
        constraints = (Check("(conversation_id IS NULL) <> (principal IS NULL)"),)


CommandTable.add_index(
    CommandTable.index(
        CommandTable.conversation,
        CommandTable.request_id,
        unique=True,
        where=SQL("conversation_id IS NOT NULL"),
        name="commands_of_conversation",
    )
)
CommandTable.add_index(
    CommandTable.index(
        CommandTable.principal,
        CommandTable.request_id,
        unique=True,
        where=SQL("principal IS NOT NULL"),
        name="commands_of_principal",
    )
)


class AttachmentTable(Model):
    """The bytes of an uploaded image, or of its scaled-down copy for models; `id` contains the hash of the upload."""

    conversation = _owner()
    id = Text()
    media_type = Text()
    data = BlobField()
    width = BigIntegerField()
    height = BigIntegerField()
    created_at = Timestamp()
    digest = _text("")

    class Meta:
        """Options of peewee."""

        table_name = "attachments"
        primary_key = CompositeKey("conversation", "id")


class SpendingTable(Model):
    """What a principal has spent on model requests on one day; `day` is counted from 1970-01-01."""

    principal = Text()
    day = BigIntegerField()
    tokens = BigIntegerField()
    cost_micros = BigIntegerField()

    class Meta:
        """Options of peewee."""

        table_name = "spendings"
        primary_key = CompositeKey("day", "principal")


class DeletionTable(Model):
    """A deleted conversation whose rows are not yet removed.

    `depth` is 0 for the conversation that a client deleted, and greater for its sub-agents; the greatest depth is
    removed first. A depth below 0 marks an unfinished fork, which either becomes visible or is abandoned.
    """

    conversation = ForeignKeyField(
        ConversationTable, column_name="conversation_id", on_delete="CASCADE", primary_key=True, backref="+"
    )
    depth = BigIntegerField()

    class Meta:
        """Options of peewee."""

        table_name = "deletions"


class AuditTable(Model):
    """An audit entry that no event log contains, such as that of a refused call or of a conversation's deletion."""

    id = AutoField()
    at = Timestamp()
    outcome = Text()
    reason = Text()
    principal = Text()
    conversation_id = Text()
    count = BigIntegerField(constraints=[SQL("DEFAULT 1")])
    origin = Text()

    class Meta:
        """Options of peewee."""

        table_name = "audit"


LogTable.add_index(
    LogTable.index(
        LogTable.at, LogTable.conversation, LogTable.step, where=SQL("audit IS NOT NULL"), name="log_audited"
    )
)
AuditTable.add_index(AuditTable.index(AuditTable.at, AuditTable.id, name="audit_at"))

TABLES = (
    ConversationTable,
    PromptTable,
    ProfileTable,
    MessageTable,
    LogTable,
    RunTable,
    FateTable,
    PruningTable,
    CommandTable,
    AttachmentTable,
    SpendingTable,
    DeletionTable,
    AuditTable,
)
