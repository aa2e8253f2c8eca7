"""Reads a whole file that should be an image; the arguments are its path and its maximum size in bytes.

Runs in a process of its own, with the permissions of the call. Prints "ok" or "error" on a line of its own, then the
bytes of the file or the text for the model. The content is not examined here.
"""

import os
import sys

from actors.adapters.tools.workers.read_file import UnreadableFileError, open_regular


def read(path: str, max_bytes: int) -> bytes:
    """Return the whole file. Raises OSError, or UnreadableFileError if it is empty or has more than `max_bytes`."""
    with open(open_regular(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        data = file.read(max_bytes + 1) if size <= max_bytes else b""
    if size > max_bytes or len(data) > max_bytes:
        raise UnreadableFileError(f"it has more than {max_bytes} bytes; make a smaller copy with bash")
    if not data:
        raise UnreadableFileError("it is empty")
    return data


def main(arguments: list[str]) -> None:
    """Read the file and print the verdict and the content; `arguments` are PATH and MAX_BYTES."""
    path, max_bytes = arguments[0], int(arguments[1])
    try:
        verdict, answer = b"ok\n", read(path, max_bytes)
    except UnreadableFileError as error:
        verdict, answer = b"error\n", f"Cannot show {path}: {error}.".encode(errors="replace")
    except (OSError, ValueError) as error:
        cause = getattr(error, "strerror", None) or str(error)
        verdict, answer = b"error\n", f"Cannot read {path}: {cause}.".encode(errors="replace")
    sys.stdout.buffer.write(verdict + answer)
