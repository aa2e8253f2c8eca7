"""The methods that shared SQL code needs of a connection, and the SQL that differs between SQLite and PostgreSQL.

Statements have `?` or `:name` for their parameters, as in SQLite.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class StatementResult(Protocol):
    """The result of an executed statement."""

    @property
    def rowcount(self) -> int:
        """The number of changed rows."""
        ...

    def fetchone(self) -> Any:
        """Return the next row; None after the last one."""
        ...

    def fetchall(self) -> list[Any]:
        """Return the remaining rows."""
        ...

    def __iter__(self) -> Iterator[Any]: ...


class Connection(Protocol):
    """A connection to a database, which can execute statements that read or write."""

    def execute(self, sql: str, values: Any = ..., /) -> StatementResult:
        """Execute a statement with its parameters, a sequence for `?` or a mapping for `:name`."""
        ...


class WritingConnection(Connection, Protocol):
    """A connection on which the thread that writes to the database can also execute a statement for many rows."""

    def executemany(self, sql: str, many: Any, /) -> object:
        """Execute a statement once for each sequence of parameters."""
        ...


class Clause(NamedTuple):
    """A condition in SQL with the values of its `?` parameters."""

    sql: str
    values: tuple[object, ...] = ()


class Dialect(NamedTuple):
    """The SQL that differs between SQLite and PostgreSQL."""

    records: str
    """The columns RECORD as a SELECT list. The state is selected in a way that works for damaged text, too."""
    visible: str
    """A condition on `conversation_id`, beginning with " AND ", that excludes deleted conversations.

    "" if the store excludes deleted conversations without a condition in the query.
    """
    unsettled_index: str
    """Text after a table's name that makes a query use the index of unsettled conversations; "" if no text is needed.

    Unsettled conversations are those that a restarted server must recover.
    """
    forked_from: str
    """An SQL expression for the origin (a conversation's id) of a fork; "" for conversations that are no forks."""
    audited: str
    """A condition that the principal `:principal` sent the command in a row of `log`.

    If `:principal` is "", it is the condition that the command has no sender.
    """
    contains: Callable[[str, str], Clause]
    """Returns the condition that the value of an SQL expression contains a text, regardless of case.

    The text must already be case-folded.
    """
    has_label: Callable[[str, str | None], Clause]
    """Returns the condition that a row of `conversations` has a label with this key and, unless None, this value."""
