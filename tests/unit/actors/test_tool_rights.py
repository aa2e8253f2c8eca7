"""The mode in force, and what runs under an earlier one (REQ-BED-016)."""

from __future__ import annotations

from actors.core.context import Mode
from actors.ports import CancelToken
from actors.runners.tool_runner import ToolRights

RESTRICTED, UNRESTRICTED = Mode.RESTRICTED, Mode.UNRESTRICTED


def test_nothing_may_change_anything_before_a_mode_is_set() -> None:
    assert ToolRights().mode is RESTRICTED


def test_a_call_keeps_the_mode_of_its_start_until_its_end() -> None:
    rights = ToolRights()
    rights.set(UNRESTRICTED)
    assert rights.begin("t1", CancelToken()) is UNRESTRICTED
    rights.set(RESTRICTED)
    assert rights.begin("t2", CancelToken()) is RESTRICTED
    assert rights.wider_than(RESTRICTED) == ("t1",)
    assert rights.wider_than(UNRESTRICTED) == ()
    rights.end("t1")
    assert rights.wider_than(RESTRICTED) == ()


def test_narrowing_never_widens() -> None:
    rights = ToolRights()
    rights.narrow(UNRESTRICTED)
    assert rights.mode is RESTRICTED
    rights.set(UNRESTRICTED)
    rights.narrow(RESTRICTED)
    assert rights.mode is RESTRICTED


def test_what_is_being_killed_is_not_named_and_what_is_pulled_is_killed() -> None:
    rights = ToolRights()
    rights.set(UNRESTRICTED)
    first, second = CancelToken(), CancelToken()
    rights.begin("t1", first)
    rights.begin("t2", second)
    first.cancel()
    assert rights.wider_than(RESTRICTED) == ("t2",)
    rights.cancel(("t2", "t9"))
    assert second.cancelled
    assert rights.wider_than(RESTRICTED) == ()
