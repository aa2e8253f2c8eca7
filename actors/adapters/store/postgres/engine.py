"""Opens connections to PostgreSQL, pools those that read, applies migrations, and reports a database's condition."""

from __future__ import annotations

import logging
import re
import select
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import peewee
import psycopg
from peewee import PostgresqlDatabase, Psycopg3Adapter
from psycopg.conninfo import conninfo_to_dict
from psycopg.types.string import StrDumperUnknown, TextBinaryLoader

from actors.adapters.store.migrations import Migrations
from actors.adapters.store.postgres.nodes.node_statements import LEASED
from actors.adapters.store.query import Session, Statement
from actors.adapters.store.reads import ReaderPool
from actors.adapters.store.rows import UNREADABLE
from actors.common.machine import OutageLog
from actors.ports import DatabaseAwayError, StoreDamagedError, StoreError, StoreUnavailableError, StoreUnusableError

_log = logging.getLogger(__name__)

OLDEST = 13  # the oldest supported version of PostgreSQL
CONNECT_SECONDS = 10
LOCK_SECONDS = 5  # maximum seconds that a statement waits for a row that another server has locked
STATEMENT_SECONDS = 60  # maximum seconds that a statement may take. Sums over a principal's rows take longest.
# Maximum seconds between two statements of a transaction; after that, the database aborts the transaction.
#
# This is less than LOCK_SECONDS: if a server is suspended within a transaction, its row locks end before other servers
# give up waiting for them.
IDLE_SECONDS = 3

# Default parameters of a connection; the parameters in a database URL override them.
_DEFAULTS = {
    "connect_timeout": str(CONNECT_SECONDS),
    # The keep-alive probes notice that the database's machine was switched off.
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "20000",
    "application_name": "bedrock",
}
# Session settings. Commits must be on disk before they are acknowledged. Sequential scans are discouraged: every
# statement has an index, but the planner prefers sequential scans while it has no statistics, as in a new database.
_SETTINGS = f"""
SELECT set_config('lock_timeout', '{LOCK_SECONDS}s', false),
       set_config('statement_timeout', '{STATEMENT_SECONDS}s', false),
       set_config('default_transaction_isolation', 'read committed', false),
       set_config('jit', 'off', false), set_config('enable_seqscan', 'off', false),
       set_config('enable_hashjoin', 'off', false), set_config('enable_mergejoin', 'off', false),
       CASE WHEN current_setting('synchronous_commit') IN ('off', 'local')
            THEN set_config('synchronous_commit', 'on', false) END
"""
# SQL expressions whose values `unfitness` checks.
FITNESS = """
current_setting('server_version_num')::integer / 10000, current_setting('server_encoding'),
pg_is_in_recovery() OR current_setting('default_transaction_read_only')::boolean
"""
_ESCAPES = {0: "\x01\x01", 1: "\x01\x02"}
_ESCAPED = re.compile("\x01[\x01\x02]")


class Address(NamedTuple):
    """The connection parameters of a database."""

    parameters: dict[str, str]
    redacted: str  # the database URL without the password, for messages


def address_of(url: str) -> Address:
    """Parse a database URL. Raises StoreUnusableError without the URL, which may contain a password."""
    try:
        if not url.startswith(("postgresql://", "postgres://")):
            raise StoreUnusableError("the database URL must begin with postgresql://")
        found = {name: str(value) for name, value in conninfo_to_dict(url).items()}
    except psycopg.Error:
        raise StoreUnusableError(
            "the database URL cannot be parsed; use postgresql://user:password@host:port/database, "
            "with %XX for reserved characters"
        ) from None
    user = f"{found['user']}@" if "user" in found else ""
    port = f":{found['port']}" if "port" in found else ""
    redacted = f"postgresql://{user}{found.get('host', '')}{port}/{found.get('dbname', '')}"
    return Address(_DEFAULTS | found, redacted)


class _Driver(Psycopg3Adapter):
    """Makes peewee, which is imported without its drivers, use psycopg 3."""

    txn_idle, txn_inerror = psycopg.pq.TransactionStatus.IDLE, psycopg.pq.TransactionStatus.INERROR
    txn_unknown = psycopg.pq.TransactionStatus.UNKNOWN

    def check_driver(self) -> None: ...
    def connect(self, db: PostgresqlDatabase, **parameters: Any) -> psycopg.Connection[tuple[Any, ...]]:
        return psycopg.connect(dbname=db.database, **parameters)


class Database(PostgresqlDatabase):
    """Peewee's PostgreSQL database, for migrations and for compiling statements."""

    psycopg2_adapter = psycopg3_adapter = _Driver  # peewee uses the adapter under one of these two names


class PostgresConnection(Session):
    """A connection in autocommit mode, used by one thread at a time.

    PostgreSQL does not accept NUL in text, so NUL is stored as two characters U+0001, and U+0001 as U+0001 U+0002,
    which preserves the order of strings.
    """

    dialect = Database(None)
    shared = True
    refusals = (
        psycopg.IntegrityError, psycopg.DataError, psycopg.errors.DeadlockDetected, psycopg.errors.LockNotAvailable,
    )  # fmt: skip

    def __init__(self, connection: psycopg.Connection[tuple[Any, ...]], me: int = 0) -> None:
        connection.adapters.register_dumper(str, _TextDumper)
        connection.adapters.register_loader("text", _TextLoader)
        self._connection = connection
        self.me = me

    def run(self, sql: str, values: Sequence[Any] | Mapping[str, Any] = (), /) -> Any:
        return self._connection.execute(sql.encode(), values or None, binary=True)

    def run_many(self, sql: str, rows: Sequence[Sequence[Any]], /) -> Any:
        cursor = self._connection.cursor()
        cursor.executemany(sql.encode(), rows)
        return cursor

    def copy_in(self, table: str, columns: Sequence[str], many: Iterable[Sequence[object]]) -> int:
        """Insert rows with COPY, which is much faster than INSERT, and return their number. Raises psycopg.Error."""
        into = f"COPY {table} ({', '.join(columns)}) FROM STDIN"
        cursor = self._connection.cursor()
        with cursor.copy(into.encode()) as copy:
            for values in many:
                copy.write_row(values)
        return cursor.rowcount

    def read_all(self, statement: Statement) -> Iterator[tuple[Any, ...]]:
        """Yield a query's rows through a server-side cursor, because they may not fit in memory. Raises psycopg.Error.

        Call this inside a transaction.
        """
        with self._connection.cursor(name="all_rows") as cursor:
            cursor.itersize = 200
            yield from cursor.execute(statement.on(self.dialect)[0].encode(), binary=True)

    @property
    def lost(self) -> bool:
        return self._connection.closed

    @property
    def ended(self) -> bool:
        """Whether the database has closed this idle connection.

        A connection counts as closed if any data other than a TLS session ticket has arrived.
        """
        if self._connection.closed or not _is_readable(self._connection.fileno()):
            return self._connection.closed
        if not self._connection.pgconn.ssl_in_use:
            return True
        try:
            self._connection.pgconn.consume_input()
        except psycopg.Error:
            return True
        return self._connection.closed or _is_readable(self._connection.fileno())

    def recovered(self) -> bool:
        """Roll back the transaction if one is open, and return whether the connection works."""
        with suppress(psycopg.Error):
            self._connection.rollback()
        return not self._connection.broken and not self._connection.closed

    def close(self) -> None:
        with suppress(psycopg.Error):
            self._connection.close()


class _TextDumper(StrDumperUnknown):
    def dump(self, obj: str) -> Any:
        # Two searches for single characters are faster than one regular expression.
        return super().dump(obj.translate(_ESCAPES) if "\x00" in obj or "\x01" in obj else obj)


class _TextLoader(TextBinaryLoader):
    def load(self, data: Any) -> Any:
        text = super().load(data)
        return _ESCAPED.sub(_unescaped, text) if isinstance(text, str) and "\x01" in text else text


def opened(
    address: Address, greet: Callable[[psycopg.Connection[tuple[Any, ...]]], object], **more: Any
) -> psycopg.Connection[tuple[Any, ...]]:
    """Open a connection in autocommit mode, and call `greet` with it. Raises psycopg.Error and what `greet` raises."""
    parameters: dict[str, Any] = address.parameters | more
    connection = psycopg.connect(autocommit=True, client_encoding="UTF8", **parameters)
    try:
        greet(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def connect(address: Address, me: int = 0, *, idle_seconds: int = IDLE_SECONDS) -> PostgresConnection:
    """Open a connection. Raises psycopg.Error, StoreUnusableError (not suitable), or DatabaseAwayError (read-only)."""

    def greet(connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        for fitness in connection.execute(f"SELECT {FITNESS}".encode()):
            if error := unfitness(*fitness):
                raise error
        connection.execute(_SETTINGS.encode())
        connection.execute(f"SET idle_in_transaction_session_timeout = '{idle_seconds}s'".encode())

    return PostgresConnection(opened(address, greet), me)


def reached(address: Address, me: int = 0) -> PostgresConnection:
    """Connect when a program starts: every failure is a StoreUnusableError."""
    try:
        return connect(address, me)
    except psycopg.Error as error:
        raise StoreUnusableError(f"{address.redacted} cannot be opened: {words(error)}") from None
    except StoreUnavailableError as error:
        raise StoreUnusableError(f"{address.redacted}: {error}") from None


def database_outages() -> OutageLog:
    """A log of when a database's outages begin and end, for all connections to that database."""
    return OutageLog(_log, "the database responds again")


def unfitness(version: int, encoding: str, read_only: bool) -> StoreError | None:
    """The error for unsuitable values of FITNESS (DatabaseAwayError for a read-only database); None if suitable."""
    if version < OLDEST:
        return StoreUnusableError(f"the database runs PostgreSQL {version}; Bedrock requires {OLDEST} or newer")
    if encoding != "UTF8":
        text = f"the database's encoding is {encoding}; create one with CREATE DATABASE … ENCODING 'UTF8'"
        return StoreUnusableError(text)
    return DatabaseAwayError("the database is read-only (a standby); use the primary's URL") if read_only else None


def explained(error: BaseException) -> StoreError | None:
    """Convert a PostgreSQL or decoding error to an exception of the store port; None for any other error."""
    match error:
        case StoreError():
            return error
        case psycopg.OperationalError() | psycopg.InterfaceError() | psycopg.InternalError():
            return DatabaseAwayError(f"the database does not respond: {words(error)}")
        case psycopg.errors.InsufficientPrivilege():
            return DatabaseAwayError(f"the database denied permission: {words(error)}")
        case _ if isinstance(error, (psycopg.Error, *UNREADABLE)):
            return StoreDamagedError(f"stored data cannot be read: {words(error)}")
        case _:
            return None


def words(error: BaseException) -> str:
    """An error's message on one line. The statement, its values and the library's questions are left out."""
    primary = error.diag.message_primary if isinstance(error, psycopg.Error) else None
    return " ".join(re.sub(r"\n\t.*", "", primary or str(error) or type(error).__name__).split())


def _is_readable(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


def _unescaped(found: re.Match[str]) -> str:
    return "\x00" if found.group() == "\x01\x01" else "\x01"


class Readers(ReaderPool[PostgresConnection]):
    def __init__(self, address: Address, me: int, outages: OutageLog) -> None:
        super().__init__()
        self._address = address
        self._me = me
        self._outages = outages

    @contextmanager
    def lend(self, texts: str = "strict") -> Generator[PostgresConnection]:
        with super().lend(texts) as session:
            yield session
            self._outages.worked()

    def _usable(self, session: PostgresConnection | None, texts: str) -> PostgresConnection:
        if session is not None:
            if not session.ended:
                return session
            session.close()  # the connection was lost while it was in the pool
        # The pause between two statements may be long, because reads lock nothing, and rows are verified in that time.
        return connect(self._address, self._me, idle_seconds=STATEMENT_SECONDS)

    def _explained(self, error: BaseException) -> StoreError | None:
        cause = explained(error)
        if isinstance(cause, DatabaseAwayError):
            self._outages.failed(str(cause))
        return cause


# --- migrations -----------------------------------------------------------------------------------------------

# Servers may start at the same time, and older versions may still use the database. A migration therefore only adds
# what a new version needs; a later migration removes objects that no version uses any more.

MIGRATIONS = Path(__file__).with_name("migrations")
LOCK = 0x426564726F636B  # the key of the advisory lock that a server holds while it migrates


def migrate(address: Address, directory: Path = MIGRATIONS) -> None:
    """Apply the missing migrations, each in its own transaction, one server at a time.

    Raises StoreUnusableError if the database is unreachable, unusable or from a newer version, or if a migration fails.
    """
    reached(address).close()
    parameters: dict[str, Any] = {name: value for name, value in address.parameters.items() if name != "dbname"}
    name = address.parameters.get("dbname") or address.parameters.get("user", "")
    database = Database(name, **parameters)
    try:
        migrations = Migrations(database, directory)
        if all(migration.applied for migration in migrations.known(address.redacted)):
            return
        database.execute_sql("SELECT pg_advisory_lock(%s)", (LOCK,))  # type: ignore[no-untyped-call]
        migrations.known(address.redacted)
        migrations.up()
    except (psycopg.Error, peewee.PeeweeException) as error:
        cause = error.__cause__ if isinstance(error.__cause__, psycopg.Error) else error
        raise StoreUnusableError(f"{address.redacted} cannot be upgraded: {words(cause)}") from None
    finally:
        database.close()


# --- the condition of a database, for its operator ----------------------------------------------------------

REPORT_SECONDS = 3  # time limit in seconds for connecting, and for each statement

_ABOUT = f"SELECT current_setting('server_version'), extract(epoch FROM clock_timestamp())::float8, {FITNESS}"  # noqa: S608 -- only constants
_TABLES = """
SELECT to_regclass('schema_migration') IS NOT NULL, to_regclass('nodes') IS NOT NULL, coalesce(current_schema(), ''),
       coalesce(has_schema_privilege(current_schema(), 'CREATE'), false)
"""
_APPLIED = "SELECT name FROM schema_migration"


class LivingNode(NamedTuple):
    name: str
    address: str
    lease_seconds: float
    draining: bool


class DatabaseReport(NamedTuple):
    redacted: str  # the database's URL, without the password
    version: str
    encoding: str
    unfit: str  # why Bedrock cannot use the database; "" if it can
    clock_ahead: float  # estimated seconds that the database's clock is ahead of this machine's
    schema: str  # the schema that contains or would contain Bedrock's tables; "" if there is none
    may_create: bool  # whether the database user may create tables in the schema `schema`
    empty: bool  # whether no migration was applied, so that the database does not yet have Bedrock's tables
    missing: tuple[str, ...]  # the names of the migrations that the next start would apply
    unknown: tuple[str, ...]  # the names of applied migrations that this version does not know
    nodes: tuple[LivingNode, ...]


def database_report(url: str, directory: Path = MIGRATIONS) -> DatabaseReport:
    """Examine a database. Raises StoreUnusableError if it cannot be reached, or if the URL is invalid."""
    address = address_of(url)
    try:
        with opened(address, _limit, connect_timeout=REPORT_SECONDS, application_name="bedrock report") as connection:
            return _looked_at(connection, address.redacted, directory)
    except psycopg.Error as error:
        raise StoreUnusableError(f"{address.redacted} cannot be opened: {words(error)}") from None


def _limit(connection: psycopg.Connection[tuple[Any, ...]]) -> None:
    connection.execute(f"SET statement_timeout = '{REPORT_SECONDS}s'".encode())


def _looked_at(connection: psycopg.Connection[tuple[Any, ...]], redacted: str, directory: Path) -> DatabaseReport:
    before = time.time()
    ((version, clock, *fitness),) = connection.execute(_ABOUT.encode()).fetchall()
    ahead = clock - (before + time.time()) / 2
    ((has_tables, has_nodes, schema, may_create),) = connection.execute(_TABLES.encode()).fetchall()
    applied = {name for (name,) in connection.execute(_APPLIED.encode())} if has_tables else set[str]()
    known = {path.stem for path in directory.glob("[0-9]*.*")}
    return DatabaseReport(
        redacted,
        str(version),
        str(fitness[1]),
        str(unfitness(*fitness) or ""),
        ahead,
        schema=schema,
        may_create=may_create,
        empty=not applied,
        missing=tuple(sorted(known - applied)),
        unknown=tuple(sorted(applied - known)),
        nodes=tuple(LivingNode(*row) for row in connection.execute(LEASED.encode())) if has_nodes else (),
    )
