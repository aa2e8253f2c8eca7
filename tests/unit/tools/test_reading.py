"""read_file and read_image: what is asked of their workers, and what these show."""

import ast
import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from actors.adapters.tools.read_file import ReadFileTool, ReadImageTool
from actors.adapters.tools.workers import read_file as worker
from actors.adapters.tools.workers.read_file import UnreadableFileError, read_whole
from actors.core.content import Image
from actors.ports import ImagesUnavailableError, InvalidImageError, ProcessStartError, ToolTransientError


def read(path: Path, offset: int = 1, limit: int = 2000) -> str:
    return worker.read(str(path), offset, limit).decode()


def show(content: bytes, path: Path, offset: int = 1, limit: int = 2000) -> str:
    path.write_bytes(content)
    return read(path, offset, limit)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "file"


def test_lines_are_numbered(file: Path) -> None:
    assert show("eins\nzwei ä\n\nvier".encode(), file) == "     1\teins\n     2\tzwei ä\n     3\t\n     4\tvier\n"


def test_a_window_shows_its_lines_and_tells_of_the_rest(file: Path) -> None:
    content = b"".join(b"%d\n" % number for number in range(1, 11))
    expected = "     3\t3\n     4\t4\n[6 more lines not shown (total: 10 lines)]\n"
    assert show(content, file, offset=3, limit=2) == expected
    assert show(content, file, offset=10, limit=1) == "    10\t10\n"


def test_the_default_window_ends_at_two_thousand(file: Path) -> None:
    text = show(b"x\n" * 2001, file)
    assert text.endswith("  2000\tx\n[1 more lines not shown (total: 2001 lines)]\n")


LINE = st.text(st.characters(exclude_characters="\n\0", codec="utf-8"), max_size=6)


@given(st.lists(LINE, max_size=12), st.booleans(), st.integers(1, 14), st.integers(1, 14), st.integers(1, 9))
def test_any_window_of_any_text_at_any_block_size(
    lines: list[str], ended: bool, offset: int, limit: int, block: int
) -> None:
    content = "\n".join(lines) + ("\n" if ended and lines else "")
    whole = content.removesuffix("\n").split("\n") if content else []
    window = worker.WindowReader(offset, limit)
    raw = content.encode()
    for start in range(0, len(raw), block):
        window.feed(raw[start : start + block])
    assert window.finish() == len(whole)
    shown = [f"{n:6d}\t{line}\n".encode() for n, line in enumerate(whole, 1) if offset <= n < offset + limit]
    assert window.shown == shown


def test_an_empty_file_is_called_empty(file: Path) -> None:
    assert show(b"", file) == "(empty file)"


def test_an_offset_behind_the_end_is_reported(file: Path) -> None:
    with pytest.raises(worker.UnreadableFileError, match=r"offset 4 is past the end of the file \(total: 3 lines\)"):
        show(b"1\n2\n3\n", file, offset=4)


def test_a_binary_file_is_refused(file: Path) -> None:
    with pytest.raises(worker.UnreadableFileError, match="binary"):
        show(b"x" * 8191 + b"\0", file)
    assert show(b"x\n" * 4096 + b"\0", file, limit=1).startswith("     1\tx\n")


def test_text_that_is_not_utf_8_is_refused_by_line(file: Path) -> None:
    with pytest.raises(worker.UnreadableFileError, match="line 2 is not UTF-8"):
        show("ok\nw\xe4re\n".encode("latin-1"), file)
    assert show(b"ok\n\xff\n", file, limit=1).startswith("     1\tok\n")


@pytest.mark.parametrize("letter", ["x", "ä", "😀"])
def test_a_long_line_is_cut_between_characters(file: Path, letter: str) -> None:
    content = letter.encode() * 100_000
    assert show(content, file) == f"     1\t{letter * 2000}… [line cut: {len(content)} bytes in all]\n"


def test_a_line_of_exactly_the_limit_is_whole(file: Path) -> None:
    assert show("😀".encode() * 2000 + b"\n", file) == f"     1\t{'😀' * 2000}\n"


def test_a_long_line_keeps_memory_bounded() -> None:
    window = worker.WindowReader(1, 10)
    for _ in range(2000):
        window.feed(b"x" * worker.BLOCK)
    assert len(window.kept) <= 4 * worker.MAX_LINE + 4
    assert window.length == 2000 * worker.BLOCK


def test_all_lines_together_are_capped(file: Path) -> None:
    text = show((b"y" * 1500 + b"\n") * 200, file)
    assert len(text) <= 128 * 1024
    shown = text.count("\n") - 1
    assert text.endswith(f"[{200 - shown} more lines not shown (total: 200 lines)]\n")
    assert 80 < shown < 200


def test_a_huge_file_is_not_read_to_its_end(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "MAX_READ", 1 << 20)
    with file.open("wb") as sparse:
        sparse.write(b"a\n" * 600_000)
        sparse.truncate(1 << 40)
    text = read(file, limit=1)
    assert text == "     1\ta\n[at least 524287 more lines not shown (total: at least 524288 lines)]\n"


def test_special_files_are_refused_without_waiting(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    link = tmp_path / "link"
    link.symlink_to(fifo)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "socket"))
    try:
        for path in (fifo, link, Path("/dev/zero"), Path("/dev/null"), tmp_path / "socket"):
            with pytest.raises(worker.UnreadableFileError, match="not a regular file"):
                read(path)
    finally:
        listener.close()
    with pytest.raises(worker.UnreadableFileError, match="directory"):
        read(tmp_path)


def test_a_symlink_to_a_file_is_read(file: Path, tmp_path: Path) -> None:
    file.write_text("x\n")
    link = tmp_path / "link"
    link.symlink_to(file)
    assert read(link) == "     1\tx\n"


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("there", "ok\n     1\tx\n"),
        ("missing", "error\nCannot read missing: No such file or directory."),
        (".", "error\nCannot show .: it is a directory; list it with bash."),
        ("n" * 300, f"error\nCannot read {'n' * 300}: File name too long."),
    ],
)
def test_the_verdict_comes_first(
    name: str, answer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    (tmp_path / "there").write_text("x\n")
    monkeypatch.chdir(tmp_path)
    worker.main([name, "1", "10"])
    sys.stdout.flush()
    assert capfdbinary.readouterr().out.decode() == answer


def test_it_imports_only_the_standard_library() -> None:
    tree = ast.parse(Path(str(worker.__file__)).read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert names <= {"os", "stat", "sys"}


# --- read_file: what is launched, and how the worker's answer is taken ---


def read_file(call: Any, **arguments: Any) -> Any:
    return ReadFileTool().run({"path": "a file"} | arguments, call.context)


def test_the_worker_gets_the_path_and_the_window(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "secret")
    call.sandbox.ends(head=b"ok\n     1\tx\n")
    assert read_file(call, path="-v", offset=3.0, limit=4).text == "     1\tx\n"
    (launch,) = call.sandbox.launches
    assert launch.python
    assert launch.argv[1:] == ("-v", "3", "4")
    assert launch.cwd == str(call.directory)
    assert "secret" not in launch.env.values()
    assert call.receipts == [()]
    assert len(call.tracked) == 1


def test_the_whole_file_is_asked_for_by_default(call: Any) -> None:
    call.sandbox.ends(head=b"ok\n")
    read_file(call)
    assert call.sandbox.launches[0].argv[1:] == ("a file", "1", "2000")


def test_what_the_worker_refuses_is_an_error(call: Any) -> None:
    call.sandbox.ends(head=b"error\nCannot read it.")
    output = read_file(call)
    assert (output.text, output.is_error) == ("Cannot read it.", True)


@pytest.mark.parametrize(
    "end",
    [
        {"exit_code": None, "signal": 9},
        {"exit_code": 1, "head": b"Traceback"},
        {"head": b"nonsense"},
        {"exit_code": None, "signal": 9, "killed": True, "limit": "lease"},
    ],
)
def test_a_lost_worker_is_transient(call: Any, end: dict[str, Any]) -> None:
    call.sandbox.ends(**end)
    with pytest.raises(ToolTransientError) as lost:
        read_file(call)
    assert lost.value.begun is True


def test_a_killed_worker_is_not_tried_again(call: Any) -> None:
    call.sandbox.ends(exit_code=None, signal=9, killed=True)
    assert read_file(call).is_error
    call.sandbox.ends(limit="wall")
    assert "longer than 60 s" in read_file(call).text


def test_a_start_that_fails_has_not_begun(call: Any) -> None:
    call.sandbox.failure = ProcessStartError("no")
    with pytest.raises(ToolTransientError) as failed:
        read_file(call)
    assert failed.value.begun is False


def test_a_path_with_nul_is_refused(call: Any) -> None:
    assert read_file(call, path="a\0b").is_error
    assert not call.sandbox.launches


# --- read_image: what is read, what is kept of it, and what the model is told ---


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
    with pytest.raises(UnreadableFileError, match="larger than 7 bytes"):
        read_whole(str(file), len(DATA) - 1)
    with pytest.raises(UnreadableFileError, match="directory"):
        read_whole(str(tmp_path), 10)
    file.write_bytes(b"")
    with pytest.raises(UnreadableFileError, match="empty"):
        read_whole(str(file), 10)
