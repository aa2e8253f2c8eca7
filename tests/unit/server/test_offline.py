"""What `bedrock cycles FILE` says of lines that are no events."""

from __future__ import annotations

import pytest

from server.wire.offline_cycles import fold

TYPES = "user-message, user-message-withdrawn, agent-output, tool-result, run-stop"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"{", "is no event: it is not JSON"),
        (b"\xff", "is no event: it is not JSON"),
        (b"[1]", f"is no event: it needs a type, which is one of {TYPES}"),
        (b"{}", f"is no event: it needs a type, which is one of {TYPES}"),
        (b'{"type": "zzz"}', f"is no event: it needs a type, which is one of {TYPES}"),
        (b'{"type": []}', f"is no event: it needs a type, which is one of {TYPES}"),
        (b'{"type": "user-message"}', "is no event of type user-message: object missing required field `id`"),
        (b'{"type": "user-message", "id": 1}', "is no event of type user-message: id: expected `str`, got `int`"),
    ],
)
def test_a_line_that_is_no_event_is_said_with_what_it_lacks(line: bytes, said: str) -> None:
    with pytest.raises(ValueError, match="no event") as refused:
        fold([b'{"type": "user-message", "id": "m1"}', b"", line])
    assert str(refused.value) == f"line 3 {said}"


@pytest.mark.parametrize("kind", ["conversation", "message", "event"])
def test_exports_are_recognized_and_distinguished(kind: str) -> None:
    with pytest.raises(ValueError, match=r"line 1 is of an export: .*`bedrock cycles NAME --events`"):
        fold([f'{{"kind": "{kind}", "{kind}": {{}}}}'.encode()])
