"""The function that folds a text as `str.casefold` does: characters for which that is one, then the rest."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from peewee import Database


def up(_migrator: object, db: Database) -> None:
    """Create the function."""
    # it has no parameters, and a per cent sign would be taken for one
    db.execute_sql(fold().replace("%", "%%"), ())  # type: ignore[no-untyped-call]


def fold() -> str:
    """Return the text of the function."""
    folded = {char: char.casefold() for char in map(chr, range(1, sys.maxunicode + 1)) if char.casefold() != char}
    single = {char: other for char, other in folded.items() if len(other) == 1}
    body = f"translate($1, '{''.join(single)}', '{''.join(single.values())}')"
    for char, others in folded.items():
        if len(others) > 1:
            body = f"replace({body}, '{char}', '{others}')"
    return f"""
        CREATE FUNCTION bedrock_fold(text) RETURNS text LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
        AS $fold$ SELECT {body} $fold$
    """
