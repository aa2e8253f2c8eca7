"""Who is declared dead, and who never is."""

import socket
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import pytest

from actors.adapters.store.postgres.nodes.node_session import NodeSession
from actors.adapters.store.postgres.nodes.node_watch import refuses
from actors.ports import StoreUnavailableError, StoreUnusableError
from tests.integration.store.nodes.conftest import make_tables
from tests.integration.store.nodes.stepped import TIMING, Database, Stepped
from tests.support.patience import PATIENCE
from tests.support.postgres import PostgresServer

LONG = 10 * TIMING.ttl


def test_a_lease_that_is_over_is_the_end_of_a_node(database: Database, ending: ExitStack) -> None:
    judge, other = Stepped(ending, database.url), Stepped(ending, database.url)
    judge.look_for(LONG)
    assert {node.incarnation for node in judge.watch.nodes()} == {judge.me.incarnation, other.me.incarnation}
    database.set_lease(other.me, -1)
    judge.look_for(TIMING.ttl + 1)
    assert database.is_dead(other.me)
    assert [node.incarnation for node in judge.dead] == [other.me.incarnation]
    assert [node.incarnation for node in judge.watch.nodes()] == [judge.me.incarnation]
    judge.look_for(1)
    assert len(judge.dead) == 1, "it is told once"
    assert not other.heartbeat.beat()
    assert not other.lease.valid()
    assert not other.watch.look()


def test_a_clock_that_is_set_ahead_kills_nobody(database: Database, ending: ExitStack) -> None:
    """The lease must not have been renewed for as long on the judge's own clock."""
    judge, other = Stepped(ending, database.url), Stepped(ending, database.url)
    for _ in range(5):
        database.set_lease(other.me, -3_600)
        judge.look_for(TIMING.ttl / 5)
        assert other.heartbeat.beat()
    assert not database.is_dead(other.me)


def test_a_lease_from_before_the_clock_was_set_back_is_over_in_time(database: Database, ending: ExitStack) -> None:
    judge, other = Stepped(ending, database.url), Stepped(ending, database.url)
    database.set_lease(other.me, 3_600)
    judge.look_for(TIMING.ttl - 1)
    assert not database.is_dead(other.me)
    judge.look_for(2)
    assert database.is_dead(other.me)


def test_a_node_that_is_new_judges_nobody(database: Database, ending: ExitStack) -> None:
    other = Stepped(ending, database.url)
    judge = Stepped(ending, database.url, steady=False)
    database.set_lease(other.me, -1)
    judge.look_for(TIMING.steady - 10)
    assert not database.is_dead(other.me)
    judge.look_for(20)
    assert database.is_dead(other.me)


@pytest.mark.parametrize("gap", ["old lease", "new session"])
def test_a_node_that_had_a_gap_judges_nobody(database: Database, ending: ExitStack, gap: str) -> None:
    judge, other = Stepped(ending, database.url), Stepped(ending, database.url)
    database.set_lease(other.me, -1)
    if gap == "new session":
        database.cut_session(judge.me)
        with pytest.raises(StoreUnavailableError):
            judge.heartbeat.beat()
        assert judge.heartbeat.beat()
    else:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(judge.lease, "valid", lambda: False)
            assert judge.heartbeat.beat()
    judge.look_for(TIMING.steady - 10)
    assert not database.is_dead(other.me)
    judge.look_for(20)
    assert database.is_dead(other.me)


def test_who_is_dead_or_has_no_lease_judges_nobody(database: Database, ending: ExitStack) -> None:
    judge, other, third = (Stepped(ending, database.url) for _ in range(3))
    database.set_lease(other.me, -1)
    judge.look_for(1)
    database.set_lease(judge.me, -1)
    judge.clock.pass_by(TIMING.ttl)
    assert judge.watch.look(), "it stopped between a heartbeat and this look"
    assert not database.is_dead(other.me)
    third.look_for(TIMING.ttl + 1)
    assert database.is_dead(other.me)
    assert database.is_dead(judge.me)
    assert not judge.watch.look()


def test_a_process_that_is_gone_is_dead_once_its_tool_hosts_have_noticed(database: Database, ending: ExitStack) -> None:
    judge, other = Stepped(ending, database.url), Stepped(ending, database.url, "there:1")
    judge.look_for(1)
    other.die(database)
    judge.refusing.add("there:1")
    judge.look_for(TIMING.confirm)
    assert judge.watch.pause() <= TIMING.confirm
    assert not database.is_dead(other.me)
    judge.look_for(TIMING.grace - 0.1)
    assert not database.is_dead(other.me)
    judge.look_for(0.2)
    assert database.is_dead(other.me)
    assert judge.watch.pause() == TIMING.again


def test_a_live_node_that_has_lost_its_session_is_left_alone(database: Database, ending: ExitStack) -> None:
    """Its port takes connections; or does not, although it renews its lease."""
    judge, other = Stepped(ending, database.url), Stepped(ending, database.url, "there:1")
    database.cut_session(other.me)
    for _ in range(3):
        judge.look_for(LONG)
    assert not database.is_dead(other.me)
    judge.refusing.add("there:1")
    beats_without_lock = "UPDATE nodes SET expires = expires + interval '1 second' WHERE incarnation = %s"
    for _ in range(5):
        judge.look_for(TIMING.grace / 2)
        database.ask(beats_without_lock, other.me.incarnation)
    assert not database.is_dead(other.me)
    with pytest.raises(StoreUnavailableError):
        other.heartbeat.beat()
    assert other.heartbeat.beat(), "with a session that has the lock again"
    judge.look_for(LONG)
    assert not database.is_dead(other.me)


@pytest.mark.parametrize("why", ["draining", "pooler or not listening", "no address"])
def test_only_its_lease_tells_of_the_end_of_a_node_if_its_port_says_nothing(
    database: Database, ending: ExitStack, why: str
) -> None:
    judge = Stepped(ending, database.url)
    other = Stepped(ending, database.url, "" if why == "no address" else "there:1")
    judge.refusing.add("there:1")
    change = {"draining": "draining = true", "no address": "dead = false"}.get(why, "session = false")
    database.ask(f"UPDATE nodes SET {change} WHERE incarnation = %s", other.me.incarnation)
    other.die(database)
    for _ in range(3):
        judge.look_for(LONG)
    assert not database.is_dead(other.me)
    database.set_lease(other.me, -1)
    judge.look_for(LONG)
    assert database.is_dead(other.me)


def test_the_node_before_at_the_same_address_is_gone(database: Database, ending: ExitStack) -> None:
    """A server that starts anew need not wait to judge its own predecessor, whose port it has."""
    before, elsewhere = Stepped(ending, database.url, "here:1"), Stepped(ending, database.url, "there:1")
    before.die(database)
    elsewhere.die(database)
    anew = Stepped(ending, database.url, "here:1", steady=False)
    anew.refusing.add("there:1")
    anew.look_for(TIMING.confirm)
    assert not database.is_dead(before.me)
    anew.look_for(TIMING.grace)
    assert database.is_dead(before.me)
    assert not database.is_dead(elsewhere.me)


def test_nobody_takes_a_newborn_for_dead(database: Database, ending: ExitStack) -> None:
    """Between any two of its first statements the others look at it, for as long as they like."""
    judge = Stepped(ending, database.url)
    judge.refusing.add("there:1")

    class Watched(NodeSession):
        def rows(self, sql: str, values: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
            found = super().rows(sql, values)
            for _ in range(3):
                judge.look_for(1)
            return found

    newborn = Stepped(ending, database.url, "there:1", session=Watched)
    assert not database.is_dead(newborn.me)
    assert database.ask("SELECT session FROM nodes WHERE address = 'there:1'") == [(True,)]
    assert not judge.dead


def test_a_database_that_crashes_kills_nobody(ending: ExitStack) -> None:
    """When it is back all sessions and leases are gone; whoever is first back must not judge the others."""
    server = PostgresServer()
    ending.callback(server.close)
    url = server.url(server.create(make_tables))
    nodes = [Stepped(ending, url, f"there:{number}") for number in range(3)]
    for node in nodes:
        node.look_for(1)
    server.crash()
    for node in nodes:
        node.clock.pass_by(LONG)
        for step in (node.heartbeat.beat, node.watch.look):
            with pytest.raises(StoreUnavailableError):
                step()
    server.start()
    database = Database(url)
    ending.callback(database.close)
    for node in nodes:
        database.set_lease(node.me, -1)
    first, second, third = nodes
    assert first.heartbeat.beat()
    first.look_for(TIMING.steady - 10)
    assert second.heartbeat.beat()
    first.look_for(20)
    assert not database.is_dead(second.me)
    assert database.is_dead(third.me), "it never came back"


@pytest.mark.parametrize(
    ("broken", "expected"),
    [
        (lambda url: url.replace("/test", "/no_test"), (StoreUnavailableError, r"cannot be reached: .*does not exist")),
        (lambda url: "postgresql://x:secret@", (StoreUnavailableError, r"cannot be reached")),
        (lambda url: url + "&secret", (StoreUnusableError, r"^the database URL cannot be parsed; ")),
    ],
    ids=["no database", "no server", "no address"],
)
def test_what_is_wrong_with_an_address_is_said_without_its_password(
    database: Database,
    ending: ExitStack,
    monkeypatch: pytest.MonkeyPatch,
    broken: Callable[[str], str],
    expected: tuple[type[Exception], str],
) -> None:
    monkeypatch.setenv("PGHOST", "/nowhere")
    with pytest.raises(expected[0], match=expected[1]) as raised:
        Stepped(ending, broken(database.url))
    assert "secret" not in repr(raised.value)
    assert raised.value.__cause__ is None


def test_a_database_that_only_reads_is_refused(database: Database, ending: ExitStack) -> None:
    ((name,),) = database.ask("SELECT current_database()")
    database.ask(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    try:
        with pytest.raises(StoreUnavailableError, match="read-only"):
            Stepped(ending, database.url)
    finally:
        database.ask(f"ALTER DATABASE {name} RESET default_transaction_read_only")


# Only a refused connection says that nobody listens any more.


def test_a_port_refuses_once_its_process_has_closed_it() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=5) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        assert not refuses(address, seconds=PATIENCE), "taken by the kernel, as for a process that is stopped"
    assert refuses(address, seconds=PATIENCE)


def test_all_addresses_of_a_name_have_to_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as open_, socket.create_server(("127.0.0.1", 0)) as closed:
        places = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", each.getsockname()) for each in (closed, open_)]
        closed.close()
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: places)
        assert not refuses("name:1", seconds=PATIENCE)
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: places[:1])
        assert refuses("name:1", seconds=PATIENCE)


@pytest.mark.parametrize(
    "address", ["", "no port", "host.invalid:1", "127.0.0.1:99999", "127.0.0.1:x", "unix:here:/tmp/x"]
)
def test_what_is_no_address_says_nothing(address: str) -> None:
    assert not refuses(address, seconds=0.1)
