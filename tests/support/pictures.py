"""Images for tests: whole, broken and hostile ones."""

import functools
import io
import random
from typing import Any

from PIL import Image

MAX_PIXELS = 40_000_000


def encoded(image: Image.Image, kind: str, **settings: Any) -> bytes:
    target = io.BytesIO()
    image.save(target, format=kind, **settings)
    return target.getvalue()


def png(width: int = 30, height: int = 20, colour: str = "red") -> bytes:
    return encoded(Image.new("RGB", (width, height), colour), "PNG")


def noise(width: int, height: int, seed: int = 1) -> Image.Image:
    """What no format makes small."""
    return Image.frombytes("RGB", (width, height), random.Random(seed).randbytes(3 * width * height))


@functools.cache
def wide_png() -> bytes:
    """12000 x 3000 pixels, almost the most that is taken."""
    return encoded(Image.linear_gradient("L").resize((12_000, 3_000)), "PNG", compress_level=1)


@functools.cache
def large_jpeg() -> bytes:
    """A photo of at least seven megabytes."""
    data = encoded(noise(3_000, 2_400), "JPEG", quality=93)
    assert len(data) >= 7_000_000
    return data


@functools.cache
def animated_gif(width: int = 60, height: int = 40) -> bytes:
    """The first frame is red, the others are blue."""
    frames = [Image.new("RGB", (width, height), colour) for colour in ("red", "blue", "blue")]
    return encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])


@functools.cache
def webp(width: int = 200, height: int = 100) -> bytes:
    return encoded(noise(width, height) if width < 1_000 else Image.new("RGB", (width, height)), "WEBP")


@functools.cache
def bomb(side: int = 9_000) -> bytes:
    """A few kilobytes, and hundreds of megabytes when they are decoded."""
    return encoded(Image.new("1", (side, side)), "PNG")


def opened(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data))
