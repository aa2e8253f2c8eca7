"""Saturation: how many pieces of text a second one server passes on before answers come half a second late."""

from tests.bench.clients import on_loop
from tests.bench.figures import Report
from tests.bench.results import Turns, floor
from tests.bench.running_server import provider, running_server
from tests.bench.turns import PAUSE, added, bedrock

CONVERSATIONS = (20, 30, 40, 50, 65, 80, 100, 120, 145, 175, 210, 250)
LATE_MS = 500.0


def run(report: Report) -> None:
    """Add conversations until half of the turns are too late; between the last two sizes the line is straight."""
    before = (0.0, 0.0)
    with provider(PAUSE) as url:
        for conversations in CONVERSATIONS:
            offered = conversations / PAUSE
            turns = _streamed(url, conversations)
            late = added(turns)
            report.add(f"pieces: {offered:,.0f} a second", "ms", added_p50=round(late), cpu_ms=round(turns.cpu_ms, 2))
            if late > LATE_MS:
                break
            before = offered, late
        else:
            report.add("pieces: most a second", "1/s", value=round(offered), more=True)
            return
        share = (LATE_MS - before[1]) / (late - before[1])
        bare = added(floor(url, conversations, 2))
    most = before[0] + (offered - before[0]) * share
    report.add("pieces: most a second", "1/s", value=round(most), bare_threads_added_ms=round(bare))


def _streamed(url: str, conversations: int) -> Turns:
    with running_server(url) as running:
        on_loop(bedrock(running, 2, 1))
        return on_loop(bedrock(running, conversations, 2))
