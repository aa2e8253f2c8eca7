"""A node as a process: it joins, and listens at its address; prints its incarnation, and ends when it is lost."""

import os
import socket
import sys

from actors.adapters.store.postgres.nodes.heartbeat import Timing
from actors.adapters.store.postgres.nodes.membership import PostgresCluster
from actors.ports.cluster import Node

LOST = 7
"""How the process ends that was declared dead."""


def main(url: str, ttl: str) -> None:
    """Be a node that judges nobody: on a machine that is busy for longer than a lease it might judge the tests."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        cluster = PostgresCluster(url, Node(0, "process", f"127.0.0.1:{listener.getsockname()[1]}"), Timing(float(ttl)))
        cluster._heartbeat.listening = True
        cluster.on_lost = lambda: os._exit(LOST)
        print(cluster.me.incarnation, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
