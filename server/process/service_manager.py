"""Reports the state of the server to the service manager that started it, by systemd's protocol sd_notify."""

from __future__ import annotations

import logging
import os
import socket

log = logging.getLogger(__name__)

READY = "READY=1"
STOPPING = "STOPPING=1"


def notify(*lines: str) -> None:
    """Send lines such as READY to the service manager. Does nothing if no service manager has started the server.

    Safe to call from any thread; never blocks. A failure is only logged, because the server works without its service
    manager.
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):  # an abstract address, which is not in the file system
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.setblocking(False)
            sender.connect(address)
            sender.send("\n".join(lines).encode())
    except OSError as error:
        log.warning("the service manager could not be notified: %s", error.strerror)
