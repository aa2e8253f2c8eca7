"""SQL statements for writing that are the same in SQLite and PostgreSQL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.adapters.store.audit_rows import AUDIT
from actors.adapters.store.rows import SPENDING

if TYPE_CHECKING:
    from collections.abc import Sequence


def insert(table: str, columns: Sequence[str]) -> str:
    """Return the statement that inserts one row with these columns."""
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"  # noqa: S608


ADD_TO_DAY = """ ON CONFLICT (day, principal) DO UPDATE
SET tokens = spendings.tokens + excluded.tokens, cost_micros = spendings.cost_micros + excluded.cost_micros
"""
ADD_SPENDING = insert("spendings", SPENDING) + ADD_TO_DAY
BEGIN_AFTER = "INSERT INTO prunings (conversation_id, step, revision, hash) VALUES (?, 0, ?, '')"
COPY_ATTACHMENT = """
INSERT INTO attachments (conversation_id, id, media_type, data, width, height, created_at, digest)
SELECT :to, id, media_type, data, width, height, :at, :digest FROM attachments
WHERE conversation_id = :origin AND id = :id
"""
UPDATE_SLUG = "UPDATE conversations SET slug = nullif(?, '') WHERE id = ?"
PRUNE_LOG = "DELETE FROM log WHERE conversation_id = :id AND first_revision <= :revision + 1 AND step <= :step"
INSERT_AUDIT = insert("audit", AUDIT)
PRUNE_AUDIT = """
DELETE FROM audit WHERE id IN (
    SELECT id FROM audit WHERE at < :before OR id <= (SELECT max(id) FROM audit) - :keep ORDER BY id LIMIT :limit)
"""
