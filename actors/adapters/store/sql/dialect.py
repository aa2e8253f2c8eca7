"""What the shared statements expect of a connection, and where the two databases differ.

Statements are written with `?` or `:name` for their parameters, the way SQLite has them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class StatementResult(Protocol):
    """What a statement has found or done."""

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
    """Where the statements for a database differ from those for the other."""

    records: str
    """The columns RECORD, the state such that a damaged one can be read."""
    visible: str
    """A condition on `conversation_id`, with " AND " before it, that excludes deleted conversations; "" where their
    ids are known without asking the database."""
    unsettled_index: str
    """What makes a query use the index of unsettled conversations."""
    forked_from: str
    """The origin of the fork that a row of `conversations` is, "" if it is none."""
    audited: str
    """Whether a row of `log` has a command of `:principal`; "": of nobody."""
    contains: Callable[[str, str], Clause]
    """Whether a text (in SQL) contains another one, which is folded, regardless of case."""
    has_label: Callable[[str, str | None], Clause]
    """Whether a row of `conversations` has a label with this key and, unless None, this value."""
