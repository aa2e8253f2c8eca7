"""What a replay finds, for the tests of everything that writes a journal."""

from actors.maintenance.verify import Replay
from actors.ports import ConversationRecord, Store


def differences(store: Store, record: ConversationRecord) -> list[str]:
    """Where the machine, asked again, says something else than the log up to `record`."""
    replay = Replay()
    rows = [row for row in store.transitions(record.id, after_step=0, limit=1_000_000) if row.step <= record.step]
    found = [f"step {step.step}: {step.difference}" for step in map(replay.step, rows) if step.difference]
    return [*found, *filter(None, [replay.end(record)])]
