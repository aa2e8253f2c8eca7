"""A program that decodes one image from standard input and makes the scaled-down copy (view) that models get.

Its argument is the maximum number of pixels in the image. It runs as a separate process with limits, because decoders
are complex and images may be hostile. It uses only the standard library and Pillow. It prints either "error", a newline
and the reason; or "ok", a newline, a JSON object on one line that describes the image, and the bytes of the view.
"""

from __future__ import annotations

import io
import json
import os
import sys
import warnings
import zlib
from contextlib import suppress
from typing import Any

# Only these plugins are imported, because some of Pillow's other plugins would run external programs. Pillow tries only
# the formats of imported plugins.
from PIL import GifImagePlugin, Image, JpegImagePlugin, PngImagePlugin, UnidentifiedImageError, WebPImagePlugin

FORMATS = ("PNG", "JPEG", "GIF", "WEBP")
PLUGINS = (PngImagePlugin, JpegImagePlugin, GifImagePlugin, WebPImagePlugin)

# Maximum pixels of the longer edge of a view (scaled-down copy). Providers themselves scale larger images down.
LONG_EDGE = 1568

# Maximum bytes of a view (scaled-down copy). In base64, this is less than 5 MB, the lowest limit of any provider.
MAX_VIEW_BYTES = 3_500_000

# JPEG qualities, tried in this order until the view (scaled-down copy) is small enough.
QUALITIES = (90, 75, 50, 25)

# Pillow's image modes that can be scaled directly; images of other modes are converted first.
DIRECT = {"L", "RGB", "RGBA", "CMYK", "YCbCr"}

# The EXIF tag with the orientation in which the camera was held.
ORIENTATION = 0x0112

# By EXIF orientation: the operation that turns an image upright.
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

# EXIF orientations that swap width and height.
SIDEWAYS = (5, 6, 7, 8)


PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"

# The bit in the first letter of a PNG chunk's name that says that decoders may ignore the chunk.
ANCILLARY = 0x20


class UnusableImageError(Exception):
    pass


def examined(data: bytes, max_pixels: int) -> tuple[dict[str, Any], bytes]:
    image = opened(data, max_pixels)
    name, size = image.format, image.size
    turn = orientation(image)
    try:
        view = scaled(image)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 -- decoders raise exceptions of any type
        raise UnusableImageError("cannot be decoded: it is corrupt or truncated") from None
    if turn in TURNS:
        view = view.transpose(TURNS[turn])
    media_type, written = encoded(view)
    facts = {
        "media_type": f"image/{str(name).lower()}",
        "size": size[::-1] if turn in SIDEWAYS else size,
        "view_type": media_type,
        "view_size": view.size,
    }
    return facts, written


def opened(data: bytes, max_pixels: int) -> Image.Image:
    too_many = f"has too many pixels; the limit is {max_pixels}"
    try:
        image = Image.open(io.BytesIO(without_damaged_extras(data)), formats=FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise UnusableImageError(too_many) from None
    except UnidentifiedImageError:
        raise UnusableImageError("is not a PNG, JPEG, GIF or WebP image, or is corrupt") from None
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 -- decoders raise exceptions of any type
        raise UnusableImageError("is corrupt") from None
    if image.width * image.height > max_pixels:
        raise UnusableImageError(too_many)
    return image


def without_damaged_extras(data: bytes) -> bytes:
    """Remove optional chunks with a wrong checksum from a PNG: browsers show such images, but Pillow refuses them."""
    if not data.startswith(PNG_SIGNATURE):
        return data
    kept, at = [PNG_SIGNATURE], len(PNG_SIGNATURE)
    while len(data) - at >= 12:
        end = at + 12 + int.from_bytes(data[at : at + 4])
        chunk = data[at:end]
        if not chunk[4] & ANCILLARY or zlib.crc32(chunk[4:-4]) == int.from_bytes(chunk[-4:]):
            kept.append(chunk)
        at = end
    return b"".join(kept)


def orientation(image: Image.Image) -> int:
    with suppress(Exception):
        return int(image.getexif().get(ORIENTATION, 1))
    return 1


def scaled(image: Image.Image) -> Image.Image:
    """The first frame, scaled down to at most LONG_EDGE pixels per side, in mode L, RGB or RGBA, without metadata."""
    if image.mode.startswith("I;16") or image.mode == "I":
        image = image.convert("I").point(lambda value: value * (1 / 256)).convert("L")
    elif image.mode not in DIRECT or "transparency" in image.info:
        image = image.convert("RGBA" if image.has_transparency_data else "RGB")
    image.thumbnail((LONG_EDGE, LONG_EDGE), Image.Resampling.LANCZOS)
    image.load()
    if image.mode not in {"L", "RGB", "RGBA"}:
        image = image.convert("RGB")
    view = image.copy()
    view.info = {}
    return view


def encoded(view: Image.Image) -> tuple[str, bytes]:
    """The media type and bytes of a view: lossless PNG if that is small enough, else JPEG.

    Raises UnusableImageError if the view exceeds MAX_VIEW_BYTES even in the lowest quality.
    """
    png = written(view, format="PNG")
    if len(png) <= MAX_VIEW_BYTES // 4:
        return "image/png", png
    opaque = view
    if view.mode == "RGBA":
        opaque = Image.new("RGB", view.size, "white")
        opaque.paste(view, mask=view.getchannel("A"))
    for quality in QUALITIES:
        jpeg = written(opaque, format="JPEG", quality=quality)
        if len(jpeg) <= MAX_VIEW_BYTES:
            return "image/jpeg", jpeg
    raise UnusableImageError("is too detailed to shrink to a size that models accept")


def written(view: Image.Image, **settings: Any) -> bytes:
    """Encode an image and return the bytes; `settings` are those of Pillow's `save`, such as the format."""
    target = io.BytesIO()
    view.save(target, **settings)
    return target.getvalue()


def main(arguments: list[str]) -> None:
    output = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)  # C decoders print warnings to stderr
    warnings.simplefilter("error", Image.DecompressionBombWarning)
    max_pixels = int(arguments[0])
    Image.MAX_IMAGE_PIXELS = max_pixels
    try:
        facts, view = examined(sys.stdin.buffer.read(), max_pixels)
        answer = b"ok\n" + json.dumps(facts).encode() + b"\n" + view
    except UnusableImageError as error:
        answer = f"error\n{error}".encode()
    except MemoryError:
        answer = b"error\ntakes too much memory to decode"
    with open(output, "wb") as target:
        target.write(answer)
