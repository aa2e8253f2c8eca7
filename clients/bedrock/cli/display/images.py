"""Short names and descriptions of images, for the terminal."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bedrock.messages import Image

#: Length of an image's short name, which is the beginning of the image's hash.
SHOWN = 12

# The characters that are removed from ids and media types, because these become parts of file names.
_NO_NAME = re.compile(r"[^0-9A-Za-z]+")


def short(image: Image) -> str:
    """Return the short name of an image: the beginning of the hash in its id."""
    return _NO_NAME.sub("", image.attachment.rpartition("/")[2].rpartition("-")[2])[:SHOWN]


def kind(image: Image) -> str:
    """Return the format, which is also the file extension: "png", "jpeg", "gif" or "webp"."""
    return _NO_NAME.sub("", image.media_type.rpartition("/")[2])


def described(image: Image) -> str:
    """Return a line of text about an image: its short name, format, width and height."""
    return f"[image {short(image)}: {kind(image)}, {image.width} x {image.height}]"
