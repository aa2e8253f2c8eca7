"""A commit that stands still on its way to the database, and arrives when others own the conversation."""

import signal
import threading
from collections.abc import Iterator
from contextlib import suppress

from bedrock import Conversation
from bedrock.errors import BedrockError

from tests.soak.cluster.three_nodes import DECLARED_DEAD, Cluster
from tests.support.proxy import Held

CALL_SECONDS = 10.0
ARRIVAL_SECONDS = 30.0
"""Until a commit is on its way, or is answered, on a machine that is busy."""
_STEP = "SELECT step FROM conversations WHERE id = %s"


def claim_first(cluster: Cluster) -> None:
    """One stands still with a commit on its way, which arrives after another has claimed the conversation."""
    _commit_late(cluster, title="")


def write_first(cluster: Cluster) -> None:
    """One stands still with a commit on its way, which arrives after another has written to the conversation."""
    _commit_late(cluster, title="meanwhile")


def _commit_late(cluster: Cluster, title: str) -> None:
    """Neither may the commit be carried out, nor may anything of it be seen. `title`: what is written before it."""
    (name,) = cluster.at_work()
    server, incarnation = cluster.servers[name], cluster.incarnation(name)
    with cluster.client(name) as client:
        conversation = client.create(cluster.folder).name
    late = f"late-{incarnation}"
    held = cluster.ways[name].hold(late)
    caller = threading.Thread(target=_give_title, args=(cluster, name, conversation, late))
    caller.start()
    try:
        if not held.arrived.wait(ARRIVAL_SECONDS):
            cluster.wrong.append("no commit was on its way")
        server.foreseen = DECLARED_DEAD
        server.process.send_signal(signal.SIGSTOP)
        cluster.await_dead(server, incarnation)
        with cluster.client(cluster.other(name)) as client:
            cluster.wrong += _arrived(cluster, client.conversation(conversation), held, title)
    except BedrockError as error:
        cluster.wrong.append(f"a call about a late commit failed: {error}")
    finally:
        held.release()
        server.process.send_signal(signal.SIGCONT)
        caller.join()
    cluster.replace(name)


def _give_title(cluster: Cluster, name: str, conversation: str, title: str) -> None:
    with suppress(BedrockError), cluster.client(name) as client:
        client.conversation(conversation).update(title=title, timeout=CALL_SECONDS)


def _arrived(cluster: Cluster, conversation: Conversation, held: Held, title: str) -> Iterator[str]:
    """Let the commit arrive once the node that is called owns the conversation; with a title, once it has written that.

    Yields what is wrong then.
    """
    if title:
        conversation.update(title=title)
    else:
        conversation.cancel()  # changes nothing, but is for the owner to say
    before = cluster.ask(_STEP, conversation.name)
    held.release()
    if not held.answered.wait(ARRIVAL_SECONDS):
        yield "the database did not answer a late commit"
    if cluster.ask(_STEP, conversation.name) != before or conversation.get().title != title:
        yield f"a late commit was carried out after another node had {'written' if title else 'claimed'}"
    conversation.update(title="last")
    if conversation.get().title != "last" or conversation.verify():
        yield "after a late commit, a title is not what was given"
