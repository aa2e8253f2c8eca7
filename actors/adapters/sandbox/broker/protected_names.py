"""Checks for names beneath a working directory that programs may not change, and for git repositories.

This module is part of the tool host, the program that starts and ends a tool's processes (see toolhost.py). To keep the
tool host small, it imports nothing of Bedrock except modules of this package and of `host`.
"""

import os

GIT_PARTS = frozenset(("head", "commondir", "objects", "refs"))
"""The names, in lower case, of the files and directories by which git recognises a repository."""


def folded(name: bytes) -> "set[str]":
    """Return the forms of a file name that are compared, as file systems may ignore case and some other characters."""
    text = os.fsdecode(name)
    if text.isascii():
        return {text.lower()}
    import unicodedata  # noqa: PLC0415 -- few names need it

    text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    return {text, "".join(each for each in text if each.isascii())}


class Names:
    """The protected names: sequences of path components that programs may not change in any directory."""

    def __init__(self, patterns: "list[bytes]") -> None:
        self.patterns = [tuple(folded(part) for part in pattern.split(b"/")) for pattern in patterns]
        self.last = set[str]().union(*(pattern[-1] for pattern in self.patterns))
        several = [pattern for pattern in self.patterns if len(pattern) > 1]
        self.ends = set[str]().union(*(pattern[-1] for pattern in several))
        """The last components of names of several components."""
        self.inner = set[str]().union(*(part for pattern in several for part in pattern[:-1]))
        """The other components of these: no symbolic link may have such a name, as its target could have any."""
        self.joint = GIT_PARTS | self.ends | self.inner
        """Names that are harmless alone, but that several changes could complete to something protected."""

    def cover(self, path: bytes) -> bool:
        """Return whether an absolute path is protected, or lies below a protected path."""
        parts = [folded(part) for part in path.split(b"/") if part]
        return any(self.end_at(parts[: length + 1]) for length, part in enumerate(parts) if part & self.last)

    def end_at(self, parts: "list[set[str]]") -> bool:
        """Return whether the path components `parts` end with one of the protected sequences."""
        return any(
            len(pattern) <= len(parts)
            and all(wanted & part for wanted, part in zip(pattern, parts[len(parts) - len(pattern) :], strict=True))
            for pattern in self.patterns
        )


def is_repository(folder: bytes, adding: str = "") -> bool:
    """Return whether a directory would be a git repository if it also contained the name `adding` (in lower case)."""

    def has(name: bytes) -> bool:
        return name.decode().lower() == adding or os.path.lexists(folder + b"/" + name)

    return has(b"HEAD") and (has(b"commondir") or (has(b"objects") and has(b"refs")))


def within(path: bytes, folder: bytes) -> bool:
    """Return whether `path` is `folder` or below it."""
    return (path + b"/").startswith(folder.rstrip(b"/") + b"/")


def why_not(root: bytes, patterns: "list[bytes]") -> str:
    """Return a readable reason why a program may not change files beneath the real path `root`; "" if it may.

    `patterns` are the protected names, each one or several components separated by slashes.
    """
    if Names(patterns).cover(root):
        return "it is, or lies in, a directory that tools may not change"
    path = root
    while path != b"/":
        if is_repository(path):
            return f"{os.fsdecode(path)} is the inside of a git repository"
        path = os.path.dirname(path)
    return ""
