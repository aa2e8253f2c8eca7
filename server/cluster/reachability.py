"""Diagnoses, in words for the operator, why a node cannot be reached, because gRPC's errors do not explain it."""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import NamedTuple

LOOK_SECONDS = 2.0
"""Maximum seconds of each attempt to connect."""

_SILENT = "nothing answers there: is its cluster.address one that other machines reach, and does a firewall let them?"
_CLOSED = "nobody listens there: has it ended, or is its cluster.address another than what it listens on?"
_UNKNOWN = "the name of its cluster.address is not known on this machine"
_NEEDS_TLS = "it listens with TLS: set cluster.ca here, with the authorities that sign the nodes' certificates"
_HAS_NO_TLS = "it listens without TLS: set tls_certificate and tls_key there, or cluster.ca at no node"
_NO_NODE = "what listens there is no node, or takes no more connections"
_UNTRUSTED = "cluster.ca here does not sign its certificate, or that is not for its cluster.address"
_PASSED = "it was reached a moment later"


class Obstacle(NamedTuple):
    """The reason why a node cannot be reached."""

    text: str
    for_good: bool = False
    """Whether the node certainly stays unreachable until somebody changes a setting."""


async def why_unreachable(address: str, authorities: bytes | None) -> Obstacle:
    """Connect to "host:port", without TLS and then with TLS, and return why a node there cannot be reached.

    `authorities` are the CA certificates of cluster.ca in PEM; None if nodes connect without TLS.
    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        await _tried(host, int(port), None)
    except TimeoutError:
        return Obstacle(_SILENT)
    except ConnectionRefusedError:
        return Obstacle(_CLOSED)
    except (socket.gaierror, UnicodeError):
        return Obstacle(_UNKNOWN)
    except OSError as error:
        return Obstacle(f"{(error.strerror or 'it cannot be connected to').lower()}: is its cluster.address right?")
    try:
        await _tried(host, int(port), _context(authorities))
    except ssl.SSLCertVerificationError as error:
        return Obstacle(f"{_UNTRUSTED}: {error.verify_message}", for_good=True)
    except ssl.SSLError:
        return Obstacle(_HAS_NO_TLS, for_good=True) if authorities else Obstacle(_NO_NODE)
    except OSError:  # includes TimeoutError
        return Obstacle(_HAS_NO_TLS if authorities else _NO_NODE)
    return Obstacle(_PASSED) if authorities else Obstacle(_NEEDS_TLS, for_good=True)


async def _tried(host: str, port: int, context: ssl.SSLContext | None) -> None:
    """Connect, with TLS if there is a context, and close the connection. Raises OSError, such as TimeoutError."""
    async with asyncio.timeout(LOOK_SECONDS):
        name = None if context is None else host
        _, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname=name)
    writer.transport.abort()


def _context(authorities: bytes | None) -> ssl.SSLContext:
    """Return a TLS context for a test connection. If `authorities` is None, it trusts any certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2"])
    if authorities is None:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    else:
        context.load_verify_locations(cadata=authorities.decode("ascii"))
    return context
