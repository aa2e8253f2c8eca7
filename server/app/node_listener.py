"""Checks, before startup, that other nodes of the cluster can call this one at the address in its settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from server.app.adapter_choice import CannotStartError
from server.process.certificates import CertificateUnusableError, why_untrusted

if TYPE_CHECKING:
    from server.cluster.router import NodeAccess
    from server.config import Config
    from server.settings.setting_values import Listener


def check_listener(config: Config, access: NodeAccess) -> None:
    """Raise CannotStartError if other nodes could not call this one at its `cluster.address`.

    The other nodes are assumed to have the same `cluster.ca`. Nothing is checked if a proxy, not
    this server, listens at that address.
    """
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
        return "cluster.ca: it is set, and there is no tls_certificate" if missing else ""
    if authorities is None:
        return f"cluster.ca: it is not set, and {certificate} is used there"
    try:
        why = why_untrusted(certificate, key, authorities, host)
    except CertificateUnusableError as error:
        raise CannotStartError(str(error)) from None
    return f"cluster.ca: it does not vouch for {certificate}, or that is for another host ({why})" if why else ""
