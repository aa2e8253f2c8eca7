"""The blocking client is what the generator makes of the client for asyncio."""

from tests.generate.client_sync import BY_HAND, SOURCE, TARGET, generated


def test_the_blocking_client_is_up_to_date() -> None:
    stale = [path.name for path, text in generated().items() if path.read_text() != text]
    assert not stale, "make client-sync"


def test_every_module_of_the_blocking_client_is_generated_or_known_to_be_written_by_hand() -> None:
    assert {path.name for path in TARGET.glob("*.py")} == {path.name for path in SOURCE.glob("*.py")} | BY_HAND


def test_nothing_of_asyncio_is_left_in_it() -> None:
    for path in TARGET.glob("*.py"):
        for word in ("await ", "async ", "Async", "asyncio"):
            assert word not in path.read_text(), f"{word} in {path.name}"
