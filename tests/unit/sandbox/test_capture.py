"""What is kept of a long output."""

from hypothesis import given
from hypothesis import strategies as st

from actors.adapters.sandbox.process_tree import Capture


@given(st.lists(st.binary(max_size=40), max_size=30), st.integers(0, 60))
def test_head_and_tail_frame_exactly_what_was_cut(pieces: list[bytes], limit: int) -> None:
    capture = Capture(limit)
    for piece in pieces:
        capture.add(piece)
    whole = b"".join(pieces)
    head, tail, cut = capture.parts()
    if len(whole) <= limit:
        assert (head, tail, cut) == (whole, b"", 0)
    else:
        assert head == whole[: limit // 2]
        assert tail == whole[len(whole) - (limit - limit // 2) :]
        assert cut == len(whole) - limit


def test_memory_stays_bounded() -> None:
    capture = Capture(1000)
    for _ in range(10_000):
        capture.add(b"x" * 999)
        assert len(capture._head) + len(capture._tail) <= 3000
