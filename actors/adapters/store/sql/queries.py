"""The SQL texts of queries, and of conditions on the table `conversations`, that SQLite and PostgreSQL share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.adapters.store import rows
from actors.adapters.store.log_rows import LOG
from actors.adapters.store.run_outcomes import FATE, RUN

if TYPE_CHECKING:
    from actors.adapters.store.sql.dialect import Dialect

ALL = (1 << 63) - 1
"""A LIMIT that is greater than any number of rows."""
UNSETTLED = (
    "state NOT IN ('idle', 'context_exhausted', 'completed', 'failed') OR (user_initiated = 0 AND state = 'idle')"
)
"""The condition for conversations that must be recovered after a restart.

SQLite uses its partial index of these conversations only if a query contains exactly this text.
"""
NOT_DELETED = "id NOT IN (SELECT conversation_id FROM deletions)"
"""The condition for conversations that are not deleted.

A deleted conversation is listed in the table `deletions` until its rows are removed.
"""
LOG_NOT_DELETED = f"conversation_{NOT_DELETED}"

PRUNED = "SELECT step, revision, hash FROM prunings WHERE conversation_id = ?"
COMMAND = "SELECT request_id, body_hash, answer, at FROM commands"
ATTACHMENT = "SELECT id, media_type, data, width, height FROM attachments WHERE conversation_id = ? AND id = ?"
SPENDINGS = "SELECT principal, day, tokens, cost_micros FROM spendings WHERE day >= ?"
STORED_BYTES = f"""
WITH owned AS (SELECT id FROM conversations WHERE principal = :principal AND {NOT_DELETED})
SELECT
(SELECT coalesce(sum(octet_length(content)), 0) FROM messages WHERE conversation_id IN (SELECT id FROM owned))
+ (SELECT coalesce(sum(octet_length(data)), 0) FROM attachments WHERE conversation_id IN (SELECT id FROM owned))
+ (SELECT coalesce(sum(octet_length(profile)), 0) FROM profiles WHERE conversation_id IN (SELECT id FROM owned))
"""  # noqa: S608
AGED = f"""
SELECT id FROM conversations WHERE id > :after AND {NOT_DELETED}
AND created_at < :before AND last_seq > :keep AND :before > (
    SELECT at FROM log WHERE conversation_id = id ORDER BY first_revision, step LIMIT 1)
ORDER BY id LIMIT :limit
"""  # noqa: S608
ARCHIVED = f"""
SELECT id FROM conversations WHERE id > :after AND archived_at < :before AND parent_conversation_id IS NULL
AND {NOT_DELETED} ORDER BY id LIMIT :limit
"""  # noqa: S608
PRINCIPAL = f"SELECT principal FROM conversations WHERE id = ? AND {NOT_DELETED}"  # noqa: S608
OF_SLUG = "SELECT id FROM conversations WHERE principal = ? AND slug = ?"
CHILDREN = f"SELECT id FROM conversations WHERE parent_conversation_id = ? AND {NOT_DELETED}"  # noqa: S608
ALL_CHILDREN = "SELECT id FROM conversations WHERE parent_conversation_id = ?"
CREATE_COMMAND = f"{COMMAND} WHERE principal = ? AND request_id = ?"
USAGES = "SELECT sequence_id, usage_data FROM messages WHERE conversation_id = ? ORDER BY sequence_id"
LAST_REVISION = f"SELECT last_seq FROM conversations WHERE id = ? AND {NOT_DELETED}"  # noqa: S608


class Queries:
    """The SQL queries that differ between SQLite and PostgreSQL."""

    def __init__(self, dialect: Dialect) -> None:
        visible = dialect.visible
        self.load = f"""
            SELECT {dialect.records}, text, profile FROM conversations
            LEFT JOIN prompts ON prompts.conversation_id = id LEFT JOIN profiles ON profiles.conversation_id = id
            WHERE id = ? AND {NOT_DELETED}
        """  # noqa: S608
        self.messages = f"SELECT {', '.join(rows.MESSAGE)} FROM messages WHERE conversation_id = ?{visible}"  # noqa: S608
        self.runs = f"SELECT {', '.join(RUN)} FROM runs WHERE conversation_id = ?{visible}"  # noqa: S608
        self.fates = f"SELECT {', '.join(FATE)} FROM fates WHERE conversation_id = ?{visible}"  # noqa: S608
        self.logged = (
            f"SELECT {', '.join(LOG)} FROM log WHERE conversation_id = ? AND step > ?{visible}"  # noqa: S608
            " ORDER BY first_revision, step LIMIT ?"
        )
        self.events = f"""
            SELECT first_revision, at, notifications FROM log
            WHERE conversation_id = :id AND count > 0 AND first_revision >= coalesce(
                (SELECT first_revision FROM log WHERE conversation_id = :id AND first_revision <= :next
                ORDER BY first_revision DESC LIMIT 1), 0){visible}
            ORDER BY first_revision LIMIT :limit
        """  # noqa: S608
        self.pruned = PRUNED + visible
        self.command = f"{COMMAND} WHERE conversation_id = ? AND request_id = ?{visible}"
        self.attachment = ATTACHMENT + visible
