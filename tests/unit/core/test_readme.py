"""actors/core/README.md shows what the code does, and the code answers every event in every state."""

from __future__ import annotations

from tests.generate.core_readme import EVENTS, STATES, TARGET, render, verdicts


def test_the_readme_is_what_the_code_does() -> None:
    assert TARGET.read_text(encoding="utf-8") == render(), "out of date: make core-readme"


def test_every_state_has_an_answer_to_every_event() -> None:
    found = verdicts()

    assert (len(EVENTS), len(STATES)) == (35, 12)
    assert not [pair for pair, verdict in found.items() if not verdict]
