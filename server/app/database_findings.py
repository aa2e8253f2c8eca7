"""Checks the configured database and the disk of the data directory, for `bedrock doctor` and `config check`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from actors.adapters.store.sqlite.data_directory import refuse_moved
from actors.adapters.store.sqlite.disk import ENOUGH_BYTES, free_bytes
from actors.ports import StoreError
from server.app.store_choice import check_postgres, own_address
from server.settings.loading import load
from server.settings.setting_values import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from actors.adapters.store.postgres.schema import DatabaseReport, LivingNode
    from server.cluster.cluster_tables import ClusterSettings
    from server.config import Config

OK, WARN, FAIL = "ok", "warn", "fail"
CLOCK_SECONDS = 5.0
"""How many seconds the clocks of the database and of this machine may differ without a warning."""

_ADVICE = (
    ("password", "Put the password into ~/.pgpass of the server's user, or into BEDROCK_DATABASE."),
    ("no pg_hba", "Allow this user and this machine in pg_hba.conf of the database."),
    ("does not exist", "Create it: createdb NAME, createuser NAME."),
    ("SSL", "Say with sslmode in the address what the database offers, and with sslrootcert whom to trust."),
    ("timeout", "Is that its address, and does a firewall let this machine through?"),
    ("too many", "Give it more connections (max_connections): each node takes 19."),
    ("", "Does PostgreSQL run there, and does it listen at that address (listen_addresses)?"),
)
"""Pairs of a text to look for in the error of a failed connection, and the advice to give if it is found.

The last text is empty, so that its advice is given for any other error.
"""


class DatabaseFinding(NamedTuple):
    """The result of one check: "ok", "warn" or "fail", what was checked, and a text."""

    level: str
    subject: str
    text: str
    advice: str = ""
    """What the operator should do; "" if there is nothing to do."""


def findings_of_settings(file: str | None) -> Iterator[DatabaseFinding]:
    """Check the database and the disk of the data directory that the settings name, and yield the results.

    `file` is the settings file; None for the usual one. If no PostgreSQL database is set, only problems are reported.
    """
    try:
        config = load({}, file=Path(file) if file else None)
        if config.database:
            yield from database_findings(config)
        else:
            yield from _moved(config)
        yield from _full_disk(config.data_dir)
    except ConfigError as error:
        yield DatabaseFinding(FAIL, "settings", str(error), "bedrock config check says more.")


def _moved(config: Config) -> Iterator[DatabaseFinding]:
    try:
        refuse_moved(config.data_dir)
    except StoreError as error:
        yield DatabaseFinding(FAIL, "database", str(error))


def _full_disk(directory: Path) -> Iterator[DatabaseFinding]:
    try:
        free = free_bytes(directory)
    except OSError:  # the directory does not exist before the first start
        return
    if free < ENOUGH_BYTES:
        text = f"{free >> 10:,} KiB are free on the file system of {directory}"
        yield DatabaseFinding(FAIL, "disk", text, f"Free at least {ENOUGH_BYTES >> 20} MiB: the server needs them.")


def database_findings(config: Config) -> Iterator[DatabaseFinding]:
    """Check the configured database within a few seconds, and yield the results.

    Raises:
        ConfigError: The package extra `postgres` is not installed.
    """
    check_postgres(config)
    from actors.adapters.store.postgres.schema import database_report  # noqa: PLC0415 -- only if needed

    try:
        report = database_report(config.database)
    except StoreError as error:
        said = str(error)
        yield DatabaseFinding(FAIL, "database", said, next(what for word, what in _ADVICE if word in said))
        return
    yield _fitness(report)
    yield _schema(report)
    yield _clock(report)
    yield _nodes(report, config)


def _fitness(report: DatabaseReport) -> DatabaseFinding:
    if report.unfit:
        return DatabaseFinding(FAIL, "database", f"{report.shown}: {report.unfit}", "Name another database.")
    return DatabaseFinding(
        OK, "database", f"{report.shown}: PostgreSQL {report.version}, {report.encoding}, takes writes"
    )


def _schema(report: DatabaseReport) -> DatabaseFinding:
    if report.unknown:
        text = f"written by a newer version, with {', '.join(report.unknown)}"
        return DatabaseFinding(FAIL, "tables", text, "Start that version, or name another database.")
    if (report.empty or report.missing) and not report.may_create:
        text = f"the user may not make any in the schema {report.schema or 'that comes first in its search_path'}"
        advice = (
            "Let it, with GRANT CREATE ON SCHEMA, or make it the owner of the database: PostgreSQL 15 asks for that."
        )
        return DatabaseFinding(FAIL, "tables", text, advice)
    if report.empty:
        return DatabaseFinding(OK, "tables", f"none yet: the first start makes them in the schema {report.schema}")
    if report.missing:
        text = f"of an older version, without {', '.join(report.missing)}"
        return DatabaseFinding(WARN, "tables", text, "The next start of this version adds them; do not go back then.")
    return DatabaseFinding(OK, "tables", f"as this version makes them, in the schema {report.schema}")


def _clock(report: DatabaseReport) -> DatabaseFinding:
    how = f"{abs(report.clock_ahead):.1f} s {'ahead of' if report.clock_ahead > 0 else 'behind'} this machine's"
    if abs(report.clock_ahead) < CLOCK_SECONDS:
        return DatabaseFinding(OK, "clock", f"that of the database is {how}")
    advice = "Set both, by NTP: leases go by the database's, times of messages by this machine's."
    return DatabaseFinding(WARN, "clock", f"that of the database is {how}", advice)


def _nodes(report: DatabaseReport, config: Config) -> DatabaseFinding:
    if not report.nodes:
        return DatabaseFinding(OK, "nodes", "none lives")
    text = ", ".join(map(_told, report.nodes))
    others = [node for node in report.nodes if node.address != own_address(config)]
    if advice := next(filter(None, (_refusal(node, config.cluster) for node in others)), ""):
        return DatabaseFinding(FAIL, "nodes", text, advice)
    return DatabaseFinding(OK, "nodes", text)


def _refusal(node: LivingNode, here: ClusterSettings | None) -> str:
    """Return why a server with the settings `here` would not start while `node` uses the same database, and a remedy.

    Returns "" if the server would start.
    """
    if here is None:
        return "A server here would refuse to start: to share a database, each needs a table [cluster]."
    if node.address.startswith("unix:"):
        return "A server here would refuse to start: give that one a table [cluster], too."
    if node.lease_seconds != here.lease_seconds:
        return (
            f"cluster.lease_seconds is {here.lease_seconds:g} here, and {node.lease_seconds:g} at {node.name}: stop "
            "all, give all the same, and start them."
        )
    return ""


def _told(node: LivingNode) -> str:
    if node.address.startswith("unix:"):
        return "a server that has the database to itself"
    stops = ", which stops" if node.draining else ""
    return f"{node.name} at {node.address} (lease of {node.lease_seconds:g} s{stops})"
