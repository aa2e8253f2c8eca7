"""Checks that the settings do not contradict each other, and that no token would cross a network without TLS."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.ports.settings.settings_checks import host_and_port, is_loopback
from server.settings.config_error import ConfigError
from server.settings.listeners import unencrypted

if TYPE_CHECKING:
    from server.cluster.cluster_tables import ClusterSettings
    from server.config import Config


def check_consistency(config: Config) -> None:
    """Raise ConfigError if settings contradict each other, or if tokens would cross a network without TLS."""
    if config.cluster is not None:
        _check_cluster(config, config.cluster)
    if config.listen_tables and (config.tls_certificate or config.tls_key or config.insecure_behind_proxy):
        raise ConfigError(
            "tls_certificate, tls_key and insecure_behind_proxy are about the one address of `listen`: each table "
            "[[listen]] has a certificate, a key or insecure_behind_proxy of its own"
        )
    if (config.tls_certificate is None) != (config.tls_key is None):
        raise ConfigError("tls_certificate and tls_key are needed together")
    open_to_others = config.listen is not None and not config.listen.local
    if config.insecure_behind_proxy and (config.tls or config.listen is None or config.listen.path):
        raise config.refusal("insecure_behind_proxy: only for host:port without TLS")
    if config.listen is not None and open_to_others and not (config.tls or config.insecure_behind_proxy):
        raise ConfigError(
            f"{unencrypted(config.listen)}"
            "Set tls_certificate and tls_key, or listen on 127.0.0.1 and put a TLS proxy or an SSH tunnel in front; "
            "insecure_behind_proxy is for networks in which a mesh encrypts everything"
        )


def _check_cluster(config: Config, cluster: ClusterSettings) -> None:
    """Raise ConfigError if there is no database to share, or if nodes would send their token to others without TLS."""
    if not config.database:
        raise config.refusal("cluster: only servers that share a database need it: set database, too")
    host, _ = host_and_port(cluster.address) or ("", 0)
    in_mesh = any(each.insecure_behind_proxy for each in config.listeners)
    if cluster.ca is None and not is_loopback(host) and not in_mesh:
        raise config.refusal(
            "cluster.ca: everybody on the network could read the nodes' token: name the authorities that sign the "
            "nodes' certificates; insecure_behind_proxy is for networks in which a mesh encrypts everything"
        )
