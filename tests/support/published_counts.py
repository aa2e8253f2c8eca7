"""Counts of a server process that a test or a measurement reads from outside."""

import json
import socket
import threading
from collections.abc import Callable


def publish(path: str, counts: Callable[[], dict[str, int]]) -> None:
    """Answer each connection with the counts; on a thread that sleeps otherwise."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()

    def answer() -> None:
        while True:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(json.dumps(counts()).encode())

    threading.Thread(target=answer, name="counts", daemon=True).start()


def read_counts(path: str) -> dict[str, int]:
    """Return what is published there now."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        with connection.makefile("rb") as answer:
            counts: dict[str, int] = json.load(answer)
            return counts
