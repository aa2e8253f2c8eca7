"""Opens the store that the settings ask for. With PostgreSQL, this server also becomes a node of the cluster.

A node first checks that the other nodes can call it at the address in its settings.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import grpc

from actors.adapters.store.sqlite.store import open_store
from actors.ports import Clock, StoreError
from actors.ports.cluster import EVERYTHING, Cluster
from server.app.adapter_choice import CannotStartError
from server.auth.tokens import TokenUnusableError, read_token
from server.cluster.peers import NodeMarks
from server.cluster.router import NodeAccess
from server.process.certificates import CertificateUnusableError, authorities_in, why_untrusted
from server.services.catalog import version
from server.settings.config import ClusterSettings, Config, shown_database
from server.settings.setting_values import ConfigError, Listener

if TYPE_CHECKING:
    from actors.adapters.store.postgres.nodes.membership import PostgresCluster
    from actors.adapters.store.postgres.store import PostgresStore
    from actors.adapters.store.sqlite.store import PeeweeStore

OpenedStore: TypeAlias = "PeeweeStore | PostgresStore"


def opened_store(
    config: Config,
    opened: ExitStack,
    clock: Clock,
    *,
    active: Callable[[], int],
    written: Callable[[int, float], None] | None,
) -> tuple[OpenedStore, Cluster]:
    """Open the store, and join the cluster if any; closing `opened` undoes both.

    `active` returns the conversations with an actor; `written` is called after each transaction with its changes and
    seconds, None for no metrics. Raises ConfigError, CannotStartError, DataDirectoryBusyError or StoreError.
    """
    if config.database:
        return _shared(config, opened, clock, active, written)
    store = open_store(config.data_dir, clock=clock, written=written)
    opened.callback(store.close)
    return store, Cluster(active)


def _shared(
    config: Config,
    opened: ExitStack,
    clock: Clock,
    active: Callable[[], int],
    written: Callable[[int, float], None] | None,
) -> tuple[PostgresStore, PostgresCluster]:
    """Register this server as a node, and open its store. Raises ConfigError, CannotStartError or StoreError."""
    check_postgres(config)
    # Imported here, because only servers with PostgreSQL have these packages.
    from actors.adapters.store.postgres.engine import address_of, database_outages, migrate  # noqa: PLC0415
    from actors.adapters.store.postgres.nodes.heartbeat import NewNode, Timing  # noqa: PLC0415
    from actors.adapters.store.postgres.nodes.membership import PostgresCluster  # noqa: PLC0415
    from actors.adapters.store.postgres.store import open_postgres  # noqa: PLC0415

    migrate(address_of(config.database))
    settings = config.cluster
    if settings is None:
        new = NewNode(address=own_address(config), version=version(), labels=frozenset({EVERYTHING}))
        timing = Timing()
    else:
        check_workspaces(settings)
        labels = frozenset(settings.workspaces)
        new, timing = NewNode(settings.name, settings.address, version(), labels), Timing(settings.lease_seconds)
    outages = database_outages()
    cluster = PostgresCluster(config.database, new, timing, active=active, outages=outages)
    opened.callback(cluster.close)
    opened.push(partial(_left_if_refused, cluster))
    _check_neighbours(config, cluster)
    cluster.on_lost = _end_at_once
    store = open_postgres(config.database, cluster.me.incarnation, clock=clock, written=written, outages=outages)
    opened.callback(store.close)
    return store, cluster


def check_postgres(config: Config) -> None:
    config.check_extra("database", "postgres", "psycopg")


def own_address(config: Config) -> str:
    """The address under which this server registers.

    Without `[cluster]` it is a placeholder without a listener, by which the next server with this data directory
    recognises that its predecessor is gone.
    """
    return f"unix:{socket.gethostname()}:{config.data_dir}" if config.cluster is None else config.cluster.address


def node_access(settings: ClusterSettings) -> NodeAccess:
    """Token and TLS credentials for calls between nodes. Raises CannotStartError."""
    try:
        token = read_token(settings.token_file)
        NodeMarks(token)
        authorities = authorities_in(settings.ca) if settings.ca is not None else None
    except (TokenUnusableError, ValueError) as error:
        raise CannotStartError(f"cluster.token_file: {error}") from None
    except CertificateUnusableError as error:
        raise CannotStartError(f"cluster.ca: {error}") from None
    except OSError as error:
        raise CannotStartError(f"cluster.ca: {settings.ca} cannot be read: {error.strerror}") from None
    credentials = grpc.ssl_channel_credentials(authorities) if authorities is not None else None
    return NodeAccess(token=token, credentials=credentials, authorities=authorities)


def check_workspaces(settings: ClusterSettings) -> None:
    """Raise CannotStartError for a missing workspace, perhaps an unmounted volume, or one whose path has a link.

    Paths of conversations have no links, so such a path would match none.
    """
    for workspace in settings.workspaces:
        if not os.path.isdir(workspace):
            raise CannotStartError(
                f"cluster.workspaces: {workspace} is not a directory here: mount it, or leave it out"
            )
        if (real := os.path.realpath(workspace)) != workspace:
            raise CannotStartError(f"cluster.workspaces: {workspace} contains a symbolic link; use {real}")


def _left_if_refused(cluster: PostgresCluster, _: object, error: BaseException | None, __: object) -> None:
    """Leave the cluster at once if the server cannot start: others would wait for this node's lease."""
    if isinstance(error, CannotStartError | ConfigError):
        with suppress(StoreError):
            cluster.drain()


def _check_neighbours(config: Config, cluster: PostgresCluster) -> None:
    """Raise CannotStartError for servers on the database that have no [cluster], or another `lease_seconds`."""
    others = [each for each in cluster.others() if each.address != cluster.me.address]
    if config.cluster is None and others:
        names = ", ".join(sorted({each.name or each.address for each in others}))
        raise CannotStartError(
            f"{shown_database(config.database)} is used by another server ({names}): to share it, each needs a table "
            "[cluster] in its settings"
        )
    if alone := [each.address for each in others if each.address.startswith("unix:")]:
        raise CannotStartError(
            f"{shown_database(config.database)} is used by a server that does not share it ({alone[0]}): give that "
            "one a table [cluster], too"
        )
    if config.cluster is not None and (differing := cluster.other_leases(config.cluster.lease_seconds)):
        name, seconds = differing[0]
        raise CannotStartError(
            f"cluster.lease_seconds is {config.cluster.lease_seconds:g} here, and {seconds:g} at the node {name}: stop "
            "all, give all the same, and start them"
        )


def _end_at_once() -> None:
    """End this process, because other nodes have declared this one dead and may own its conversations now."""
    logging.shutdown()
    os._exit(1)


def check_listener(config: Config, access: NodeAccess) -> None:
    """Raise CannotStartError if others, with the same `cluster.ca`, could not call this node; not behind a proxy."""
    assert config.cluster is not None  # noqa: S101 -- only a node of a cluster has a NodeAccess
    address = config.cluster.address
    host, _, port = address.rpartition(":")
    for listener in config.listeners:
        if listener.where.path or listener.where.port != int(port):
            continue
        if why := _why_uncalled(listener, access.authorities, host.strip("[]")):
            raise CannotStartError(f"{why}: other nodes could not call this one at its cluster.address, {address}")


def _why_uncalled(listener: Listener, authorities: bytes | None, host: str) -> str:
    certificate, key = listener.certificate, listener.key
    if certificate is None or key is None:
        missing = authorities is not None and not listener.insecure_behind_proxy
        return "cluster.ca: it is set, but there is no tls_certificate" if missing else ""
    if authorities is None:
        return f"cluster.ca: it is not set, but {certificate} is used there"
    try:
        why = why_untrusted(certificate, key, authorities, host)
    except CertificateUnusableError as error:
        raise CannotStartError(str(error)) from None
    return f"cluster.ca: it did not sign {certificate}, or that is for another host ({why})" if why else ""
