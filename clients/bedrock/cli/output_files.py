"""Writes a command's output files atomically, and overwrites existing files only if requested."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from bedrock.cli import exit_codes as exits

if TYPE_CHECKING:
    from collections.abc import Iterable


def write_file(path: Path, pieces: Iterable[bytes], *, force: bool, follow_link: bool = True) -> None:
    """Write a temporary file in the same directory, and rename it to `path` when it is complete.

    A device or a pipe is written to directly. The first piece is requested before the file system is changed, so that
    an error of the server leaves no file.

    Args:
        path: The target.
        pieces: The content.
        force: Whether to replace an existing file.
        follow_link: Whether to write to the target of a symbolic link; else the link itself counts as an existing file.

    Raises:
        CommandError: The file exists, or cannot be written. Nothing has changed then.
    """
    pieces = iter(pieces)
    first = next(pieces, b"")
    place = Path(os.path.realpath(path)) if follow_link else path
    exists = place.exists if follow_link else lambda: os.path.lexists(place)
    try:
        if path.exists() and not path.is_file() and (follow_link or not path.is_symlink()):
            _write(path, "wb", first, pieces)
            return
        beside = place.with_name(f".bedrock-{os.getpid()}.part")
        try:
            _refuse(path, exists() and not force)
            _write(beside, "xb", first, pieces)
            _refuse(path, exists() and not force)  # checked again: the file may have been created meanwhile
            beside.replace(place)
        finally:
            with suppress(OSError):
                beside.unlink()
    except OSError as error:
        raise exits.CommandError(f"{path} cannot be written: {error.strerror}", exit_code=exits.USAGE) from None


def _write(path: Path, mode: str, first: bytes, pieces: Iterable[bytes]) -> None:
    with path.open(mode) as file:
        file.write(first)
        file.writelines(pieces)


def _refuse(path: Path, exists: bool) -> None:
    if exists:
        raise exits.CommandError(f"{path} exists already", "--force overwrites it.", exits.USAGE)
