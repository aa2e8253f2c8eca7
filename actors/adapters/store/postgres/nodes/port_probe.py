"""Probes whether a process still listens at a node's address."""

from __future__ import annotations

import socket

from actors.ports.settings.settings_checks import host_and_port


def refuses(address: str, *, seconds: float) -> bool:
    """Return whether all addresses of "host:port" refuse connections, which proves that the process there is gone.

    Other results prove nothing: no answer may mean that the machine is cut off, and the kernel accepts connections for
    a stopped process. Blocks for at most `seconds` per address, plus the time of the name look-up.
    """
    where = host_and_port(address)
    if where is None or not where[1]:  # no server can listen at port 0; host_and_port refuses ports above 65,535
        return False
    try:
        found = socket.getaddrinfo(*where, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    return bool(found) and all(_refused(family, where, seconds) for family, _, _, _, where in found)


def _refused(family: int, where: tuple[object, ...], seconds: float) -> bool:
    with socket.socket(family, socket.SOCK_STREAM) as tried:
        tried.settimeout(seconds)
        try:
            tried.connect(where)
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False
