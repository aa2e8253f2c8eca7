"""Finds the address that a call comes from, for logs and the audit trail."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from server.services.request_reading import Context


def peer_of(context: Context) -> str:
    """Return the address at the other end of the connection, such as `ipv4:192.0.2.1:50000` or `unix:`."""
    return context.peer()


def forwarded_peer_of(context: Context) -> str:
    """Return the client's address as the proxy reports it, such as `ipv4:192.0.2.1`; without a report, the proxy's own.

    A proxy appends the address that it sees to the header `x-forwarded-for`. Earlier entries may be forged by a
    client.
    """
    found = [value for key, value in context.invocation_metadata() or () if key == "x-forwarded-for"]
    last = str(found[-1]).rpartition(",")[2].strip() if found else ""
    try:
        address = ipaddress.ip_address(last)
    except ValueError:
        return context.peer()
    return f"ipv{address.version}:{address}".partition("%")[0]  # without an IPv6 scope, which may be any text
