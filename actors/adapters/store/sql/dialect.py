"""The interface that shared SQL code needs of a connection, and the SQL that differs between SQLite and PostgreSQL.

Statements have `?` or `:name` for their parameters, as in SQLite.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class StatementResult(Protocol):
    """The result of a statement."""

    @property
    def rowcount(self) -> int:
        """How many rows were changed."""
        ...

    def fetchone(self) -> Any:
        """Return the next row, or None."""
        ...

    def fetchall(self) -> list[Any]:
        """Return the remaining rows."""
        ...

    def __iter__(self) -> Iterator[Any]: ...


class Connection(Protocol):
    """A connection to a database."""

    def execute(self, sql: str, values: Any = ..., /) -> StatementResult:
        """Execute a statement with its parameters, a sequence or a mapping."""
        ...


class WritingConnection(Connection, Protocol):
    """A connection of a writer."""

    def executemany(self, sql: str, many: Any, /) -> object:
        """Execute a statement for each row of parameters."""
        ...


class Clause(NamedTuple):
    """A condition in SQL with the values of its parameters."""

    sql: str
    values: tuple[object, ...] = ()


class Dialect(NamedTuple):
    """The parts of statements that differ between SQLite and PostgreSQL."""

    records: str
    """The columns RECORD; the state is selected so that damaged text can be read, too."""
    visible: str
    """A condition on `conversation_id`, with " AND " before it, that excludes deleted conversations.

    "" if the deleted ids are known without a query.
    """
    unsettled_index: str
    """Text after a table's name that makes a query use the index of unsettled conversations."""
    forked_from: str
    """An expression for the origin of the conversation if it is a fork, else ""."""
    audited: str
    """A condition on a row of `log`: its command was sent by the principal `:principal`; "": by no principal."""
    contains: Callable[[str, str], Clause]
    """Returns the condition that a text (an SQL expression) contains another, case-folded text, regardless of case."""
    has_label: Callable[[str, str | None], Clause]
    """Returns the condition that a row of `conversations` has a label with this key and, unless None, this value."""
