"""What the agent is to be told and cannot be told yet: it waits for the next inference boundary (SEMANTICS C48)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from actors.core.content import SystemKind
from actors.core.states import Notice

if TYPE_CHECKING:
    from collections.abc import Collection

    from actors.core.steps.transition_builder import Draft

FOR_THE_MODEL_ONLY = {SystemKind.INTERRUPTED}
"""People have seen what these say when it happened."""


def put(draft: Draft, kind: SystemKind, text: str, replacing: Collection[SystemKind]) -> None:
    """Let a notice wait; one of these kinds that waits already is out of date."""
    forget(draft, replacing)
    notice = Notice(kind, text, draft.at)
    draft.ledger = replace(draft.ledger, pending_notices=(*draft.ledger.pending_notices, notice))


def forget(draft: Draft, kinds: Collection[SystemKind]) -> None:
    """No notice of these kinds waits any more."""
    kept = tuple(notice for notice in draft.ledger.pending_notices if notice.kind not in kinds)
    if len(kept) != len(draft.ledger.pending_notices):
        draft.ledger = replace(draft.ledger, pending_notices=kept)


def deliver(draft: Draft, kinds: Collection[SystemKind] = frozenset(SystemKind)) -> None:
    """Waiting notices, or those of some kinds, enter the history, in the order they came (I40)."""
    due = [notice for notice in draft.ledger.pending_notices if notice.kind in kinds]
    forget(draft, kinds)
    for notice in due:
        draft.say_system(notice.kind, notice.text, meta=notice.kind in FOR_THE_MODEL_ONLY)
