"""What becomes of an image, whatever is in it."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from actors.adapters.images import worker
from actors.adapters.images.worker import LONG_EDGE, MAX_VIEW_BYTES, UnusableImageError, examined
from tests.support import pictures
from tests.support.pictures import MAX_PIXELS, encoded, noise, opened

GOOD: dict[str, tuple[Callable[[], bytes], str, tuple[int, int]]] = {
    "png": (lambda: pictures.png(30, 20), "image/png", (30, 20)),
    "wide png": (pictures.wide_png, "image/png", (12_000, 3_000)),
    "7 MB jpeg": (pictures.large_jpeg, "image/jpeg", (3_000, 2_400)),
    "animated gif": (pictures.animated_gif, "image/gif", (60, 40)),
    "webp": (pictures.webp, "image/webp", (200, 100)),
    "large animated gif": (lambda: pictures.animated_gif(2_000, 1_500), "image/gif", (2_000, 1_500)),
    "large webp": (lambda: pictures.webp(4_000, 3_000), "image/webp", (4_000, 3_000)),
    "a png whose colour profile is broken": (
        lambda: pictures.png(30, 20)[:33] + b"\0\0\0\1iCCP?\0\0\0\0" + pictures.png(30, 20)[33:],
        "image/png",
        (30, 20),
    ),
    "one pixel": (lambda: pictures.png(1, 1), "image/png", (1, 1)),
    "a line": (lambda: pictures.png(60_000, 1), "image/png", (60_000, 1)),
    "cmyk": (lambda: encoded(Image.new("CMYK", (9, 5)), "JPEG"), "image/jpeg", (9, 5)),
    **{
        f"mode {mode}": (lambda mode=mode: encoded(Image.new(mode, (9, 5)), "PNG"), "image/png", (9, 5))  # type: ignore[misc]
        for mode in ("1", "L", "LA", "P", "RGBA", "I;16")
    },
}

BAD: dict[str, tuple[Callable[[], bytes], str]] = {
    "a bomb": (pictures.bomb, "has too many pixels; the limit is 40000000"),
    "a large bomb": (lambda: pictures.bomb(20_000), "has too many pixels; the limit is 40000000"),
    "a cut png": (lambda: encoded(noise(300, 300), "PNG")[:100_000], "cannot be decoded: it is corrupt or truncated"),
    "a cut jpeg": (lambda: pictures.large_jpeg()[:500_000], "cannot be decoded: it is corrupt or truncated"),
    "a cut gif": (lambda: pictures.animated_gif()[:100], "cannot be decoded: it is corrupt or truncated"),
    "a cut webp": (lambda: pictures.webp()[:5_000], "is corrupt"),
    "text": (lambda: b"hello", "is not a PNG, JPEG, GIF or WebP image, or is corrupt"),
    "nothing": (lambda: b"", "is not a PNG, JPEG, GIF or WebP image, or is corrupt"),
    "a header": (lambda: pictures.png()[:24], "is corrupt"),
    "bmp": (lambda: encoded(Image.new("RGB", (5, 5)), "BMP"), "is not a PNG, JPEG, GIF or WebP image, or is corrupt"),
    "eps": (
        lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n",
        "is not a PNG, JPEG, GIF or WebP image, or is corrupt",
    ),
}


@pytest.mark.parametrize("name", GOOD)
def test_a_good_image_gets_a_view_that_every_provider_takes(name: str) -> None:
    make, media_type, size = GOOD[name]
    facts, view = examined(make(), MAX_PIXELS)
    assert (facts["media_type"], tuple(facts["size"])) == (media_type, size)
    shown = opened(view)
    shown.load()
    assert f"image/{str(shown.format).lower()}" == facts["view_type"]
    assert facts["view_type"] in {"image/png", "image/jpeg"}
    assert tuple(facts["view_size"]) == shown.size
    assert max(shown.size) == min(LONG_EDGE, max(size))
    assert len(view) <= MAX_VIEW_BYTES
    assert 4 * len(view) / 3 < 5_000_000
    assert not shown.info.keys() & {"exif", "icc_profile", "comment", "transparency"}


@pytest.mark.parametrize("name", GOOD)
def test_a_view_is_the_same_each_time(name: str) -> None:
    data = GOOD[name][0]()
    assert examined(data, MAX_PIXELS) == examined(data, MAX_PIXELS)


@pytest.mark.parametrize("name", BAD)
def test_a_bad_image_is_refused_in_words(name: str) -> None:
    make, text = BAD[name]
    with pytest.raises(UnusableImageError) as refused:
        examined(make(), MAX_PIXELS)
    assert str(refused.value) == text


def test_an_animated_image_is_seen_by_its_first_frame() -> None:
    _, view = examined(pictures.animated_gif(), MAX_PIXELS)
    assert opened(view).convert("RGB").getpixel((5, 5)) == (255, 0, 0)


def test_noise_is_made_small_enough_by_giving_up_quality(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encoded(noise(400, 400), "PNG")
    monkeypatch.setattr(worker, "MAX_VIEW_BYTES", 60_000)
    facts, view = examined(data, MAX_PIXELS)
    assert (facts["view_type"], len(view) <= 60_000) == ("image/jpeg", True)
    monkeypatch.setattr(worker, "MAX_VIEW_BYTES", 600)
    with pytest.raises(UnusableImageError, match="too detailed"):
        examined(data, MAX_PIXELS)


def test_what_is_transparent_becomes_white_in_a_jpeg(monkeypatch: pytest.MonkeyPatch) -> None:
    image = noise(300, 300).convert("RGBA")
    image.putalpha(0)
    monkeypatch.setattr(worker, "MAX_VIEW_BYTES", 100_000)
    facts, view = examined(encoded(image, "PNG"), MAX_PIXELS)
    assert facts["view_type"] == "image/jpeg"
    assert opened(view).getpixel((100, 100)) == (255, 255, 255)


@pytest.mark.parametrize(("orientation", "corner"), [(1, (0, 0)), (3, (9, 5)), (6, (5, 0)), (8, (0, 9))])
def test_a_photo_is_turned_as_its_camera_was_held(orientation: int, corner: tuple[int, int]) -> None:
    image = Image.new("RGB", (10, 6), "black")
    image.putpixel((0, 0), (255, 255, 255))
    exif = Image.Exif()
    exif[0x0112] = orientation
    facts, view = examined(encoded(image, "PNG", exif=exif), MAX_PIXELS)
    assert tuple(facts["size"]) == ((10, 6) if orientation in (1, 3) else (6, 10))
    assert opened(view).convert("RGB").getpixel(corner) == (255, 255, 255)


def test_sixteen_bits_of_grey_are_scaled_not_cut() -> None:
    image = Image.new("I;16", (3, 1))
    for place, value in enumerate((0, 32_768, 65_535)):
        image.putpixel((place, 0), value)
    _, view = examined(encoded(image, "PNG"), MAX_PIXELS)
    shown = opened(view)
    assert [shown.getpixel((place, 0)) for place in range(3)] == [0, 128, 255]


@settings(max_examples=200, deadline=None)
@given(data=st.data(), name=st.sampled_from(["png", "animated gif", "webp", "cmyk", "mode P"]))
def test_whatever_is_broken_in_an_image_it_is_refused_or_seen(data: Any, name: str) -> None:
    content = bytearray(GOOD[name][0]())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        facts, view = examined(bytes(content), 1_000_000)
    except UnusableImageError:
        return
    assert facts["size"][0] * facts["size"][1] <= 1_000_000
    opened(view).load()
