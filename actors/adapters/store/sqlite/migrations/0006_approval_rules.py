"""Names of tools that ask no more become approval rules. Digests that fitted their rows fit them again."""

from __future__ import annotations

import hashlib
import json

from peewee import Database

COLUMNS = (
    "id", "cwd", "parent_conversation_id", "user_initiated", "created_at", "continued_from", "workspace_label",
    "principal", "state", "state_data", "state_updated_at", "updated_at", "archived", "archived_at", "mode", "model",
    "title", "labels", "approval_policy", "always_approved", "follow_up_policy", "budget", "continued_by", "node",
    "epoch", "step", "last_seq", "slug",
)  # fmt: skip
"""The columns that the digest of a conversation covers, in its order."""
PLACE = COLUMNS.index("always_approved")

AFFECTED = f"SELECT {', '.join(COLUMNS)}, digest FROM conversations WHERE always_approved <> '[]'"  # noqa: S608
CHANGE = "UPDATE conversations SET always_approved = ?, digest = ? WHERE id = ?"
RENAME = "ALTER TABLE conversations RENAME COLUMN always_approved TO approval_rules"


def up(_migrator: object, db: Database) -> None:
    """Rewrite the column, row by row, then rename it."""
    for *values, digest in db.execute_sql(AFFECTED).fetchall():  # type: ignore[no-untyped-call]
        after = list(values)
        after[PLACE] = rules_of(values[PLACE])
        changed = digest_of(after) if digest == digest_of(values) else digest
        db.execute_sql(CHANGE, (after[PLACE], changed, values[0]))  # type: ignore[no-untyped-call]
    db.execute_sql(RENAME)  # type: ignore[no-untyped-call]


def rules_of(names: str) -> str:
    """Return the stored rules that allow the tools of a stored list of names; damaged text stays as it is."""
    try:
        tools = json.loads(names)
    except ValueError:
        return names
    if not isinstance(tools, list):
        return names
    return _compact([{"id": f"tool-{number}", "action": "allow", "tool": tool} for number, tool in enumerate(tools, 1)])


def digest_of(values: list[object]) -> str:
    """Return the digest of these values: SHA-256 of a JSON array, with an empty text for NULL."""
    return hashlib.sha256(_compact(["" if value is None else value for value in values]).encode()).hexdigest()


def _compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
