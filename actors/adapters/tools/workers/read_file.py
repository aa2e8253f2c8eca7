"""Reads lines of a text file, or a whole file, which should be an image (this is not checked here).

The arguments are the file's path, the number of the first line and the number of lines; or the path and the maximum
size in bytes. This program runs in a separate process, so that it can be killed if the file is huge, the disk is slow
or the mount hangs. It prints "ok" or "error" on a line of its own, then the content or the text for the model. Its
memory stays bounded.
"""

import os
import stat
import sys

BLOCK = 1 << 18

# How many bytes at the start of a file are checked for NUL, which means that the file is binary.
SNIFFED = 8 * 1024

MAX_LINE = 2000

# Maximum bytes of all lines that are shown; lines beyond this limit are reported as not shown.
MAX_TEXT = 126 * 1024

# Maximum bytes that are read from a file; lines beyond this limit are neither shown nor counted.
MAX_READ = 1 << 28


class UnreadableFileError(Exception):
    pass


class WindowReader:
    """Processes a file block by block, and keeps at most `limit` lines from number `offset` on."""

    def __init__(self, offset: int, limit: int) -> None:
        self.first = offset
        self.end = offset + limit
        self.shown: list[bytes] = []
        self.size = 0
        self.number = 1
        # The beginning of the current line; b"" if the line is not to be shown.
        self.kept = b""
        # The bytes of the current line so far, including those that are not kept.
        self.length = 0

    def feed(self, block: bytes) -> None:
        position = 0
        while position < len(block):
            if self.number >= self.end:
                self.skip(block[position:])
                return
            newline = block.find(b"\n", position)
            end = len(block) if newline < 0 else newline
            self.extend(block, position, end)
            if newline >= 0:
                self.close_line()
            position = end + 1

    def extend(self, block: bytes, start: int, end: int) -> None:
        if self.number >= self.first:
            room = 4 * MAX_LINE + 4 - len(self.kept)
            self.kept += block[start : min(end, start + max(0, room))]
        self.length += end - start

    def skip(self, block: bytes) -> None:
        """Count the lines of a block that is after the last line to show."""
        lines = block.count(b"\n")
        self.number += lines
        self.length = len(block) - block.rfind(b"\n") - 1 if lines else self.length + len(block)

    def close_line(self) -> None:
        if self.first <= self.number < self.end:
            self.show()
        self.number += 1
        self.kept, self.length = b"", 0

    def show(self) -> None:
        line = f"{self.number:6d}\t{self.line()}\n".encode()
        if self.size + len(line) > MAX_TEXT:
            self.end = self.number
            return
        self.shown.append(line)
        self.size += len(line)

    def line(self) -> str:
        whole = len(self.kept) == self.length
        try:
            text = self.kept.decode()
        except UnicodeDecodeError as error:
            if whole or error.reason != "unexpected end of data":
                raise UnreadableFileError(f"line {self.number} is not UTF-8 text") from None
            text = self.kept[: error.start].decode()
        if whole and len(text) <= MAX_LINE:
            return text
        return f"{text[:MAX_LINE]}… [line cut: {self.length} bytes in all]"

    def finish(self) -> int:
        if self.length:
            self.close_line()
        return self.number - 1


def open_regular(path: str) -> int:
    """Open a regular file without ever blocking. Raises OSError or UnreadableFileError."""
    check_regular(os.stat(path))
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    check_regular(os.fstat(file))
    return file


def check_regular(found: os.stat_result) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise UnreadableFileError("it is a directory; list it with bash")
    if not stat.S_ISREG(found.st_mode):
        raise UnreadableFileError("it is not a regular file")


def read(path: str, offset: int, limit: int) -> bytes:
    file = open_regular(path)
    window = WindowReader(offset, limit)
    taken = 0
    while block := os.read(file, BLOCK):
        if taken == 0 and b"\0" in block[:SNIFFED]:
            raise UnreadableFileError("it appears to be a binary file")
        window.feed(block)
        taken += len(block)
        if taken >= MAX_READ:
            break
    if not taken:
        return b"(empty file)"
    total = window.finish()
    return b"".join(window.shown) + remark(window, total, taken >= MAX_READ)


def remark(window: WindowReader, total: int, more: bool) -> bytes:
    """A remark about lines that are not shown, or b"". Raises UnreadableFileError if `offset` is beyond the end."""
    at_least = "at least " if more else ""
    if window.first > total:
        raise UnreadableFileError(f"offset {window.first} is past the end of the file (total: {at_least}{total} lines)")
    hidden = total - (window.first - 1) - len(window.shown)
    if not hidden and not more:
        return b""
    return f"[{at_least}{hidden} more lines not shown (total: {at_least}{total} lines)]\n".encode()


def read_whole(path: str, max_bytes: int) -> bytes:
    """The whole file. Raises OSError, or UnreadableFileError if it is empty or has more than `max_bytes`."""
    with open(open_regular(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        data = file.read(max_bytes + 1) if size <= max_bytes else b""
    if size > max_bytes or len(data) > max_bytes:
        raise UnreadableFileError(f"it is larger than {max_bytes} bytes; make a smaller copy with bash")
    if not data:
        raise UnreadableFileError("it is empty")
    return data


def main(arguments: list[str]) -> None:
    path, *numbers = arguments
    try:
        verdict, answer = b"ok\n", (read if len(numbers) > 1 else read_whole)(path, *map(int, numbers))
    except UnreadableFileError as error:
        verdict, answer = b"error\n", f"Cannot show {path}: {error}.".encode(errors="replace")
    except (OSError, ValueError) as error:
        cause = getattr(error, "strerror", None) or str(error)
        verdict, answer = b"error\n", f"Cannot read {path}: {cause}.".encode(errors="replace")
    sys.stdout.buffer.write(verdict + answer)
