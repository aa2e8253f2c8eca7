"""read_image: what is read, what is kept of it, and what the model is told."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from actors.adapters.tools.read_file import ReadImageTool
from actors.adapters.tools.workers.read_file import UnreadableFileError, read_whole
from actors.core.content import Image
from actors.ports import ImagesUnavailableError, InvalidImageError, ToolTransientError

DATA = b"\x89PNG\r\n\x00\xff"


def run(call: Any, keep: Any, path: str = "a.png") -> Any:
    return ReadImageTool().run({"path": path}, replace(call.context, keep_image=keep))


@pytest.mark.parametrize(("media_type", "more"), [("image/png", False), ("image/gif", True)])
def test_the_bytes_are_kept_and_the_result_refers_to_them(call: Any, media_type: str, more: bool) -> None:
    kept: list[bytes] = []
    image = Image("sha256-1", media_type, 4, 3)

    def keep(data: bytes) -> Image:
        kept.append(data)
        return image

    call.sandbox.ends(head=b"ok\n" + DATA)
    output = run(call, keep)
    assert (kept, output.images, output.is_error) == ([DATA], (image,), False)
    assert output.text.startswith(f"a.png: {media_type}, 4 x 3 pixels.")
    assert ("first frame" in output.text) == more
    assert call.sandbox.launches[0].argv[1:] == ("a.png", str(20 << 20))


def test_what_cannot_be_used_is_reported(call: Any) -> None:
    def refuse(data: bytes) -> Image:
        raise InvalidImageError("is damaged")

    call.sandbox.ends(head=b"ok\nhello")
    output = run(call, refuse)
    assert (output.text, output.is_error) == ("Cannot show a.png: the image is damaged.", True)
    call.sandbox.ends(head=b"error\nCannot read a.png: No such file or directory.")
    assert run(call, refuse).text == "Cannot read a.png: No such file or directory."
    assert run(call, refuse, "a\0b").is_error


def test_a_process_that_is_lost_is_transient(call: Any) -> None:
    def fail(data: bytes) -> Image:
        raise ImagesUnavailableError("lost")

    call.sandbox.ends(head=b"ok\nhello")
    with pytest.raises(ToolTransientError, match="lost"):
        run(call, fail)


def test_the_worker_reads_whole_files_of_bounded_size(tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    file.write_bytes(DATA)
    assert read_whole(str(file), len(DATA)) == DATA
    with pytest.raises(UnreadableFileError, match="more than 7 bytes"):
        read_whole(str(file), len(DATA) - 1)
    with pytest.raises(UnreadableFileError, match="directory"):
        read_whole(str(tmp_path), 10)
    file.write_bytes(b"")
    with pytest.raises(UnreadableFileError, match="empty"):
        read_whole(str(file), 10)
