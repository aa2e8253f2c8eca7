"""The priority mailbox: two lanes, FIFO in each, and nobody waits for the dead."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import pykka
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pykka import ActorDeadError
from pykka._envelope import Envelope

from actors.runtime.mailbox import Mailbox, refuse

PATIENCE = 10.0


@dataclass(frozen=True)
class Letter:
    number: int
    urgent: bool = False


def letters(mailbox: Mailbox) -> list[Letter]:
    taken = []
    while not mailbox.empty():
        taken.append(mailbox.get().message)
    return taken


@given(st.lists(st.booleans(), max_size=30))
def test_urgent_messages_come_first_and_each_lane_keeps_its_order(lanes: list[bool]) -> None:
    mailbox = Mailbox()
    sent = [Letter(number, urgent) for number, urgent in enumerate(lanes)]
    for letter in sent:
        mailbox.put(Envelope(letter))
    assert letters(mailbox) == [one for one in sent if one.urgent] + [one for one in sent if not one.urgent]


@given(st.lists(st.one_of(st.none(), st.booleans()), max_size=40))
def test_whatever_is_put_is_taken_once_however_puts_and_gets_mix(script: list[bool | None]) -> None:
    mailbox, sent, taken = Mailbox(), [], []
    for number, step in enumerate(script):
        if step is None:
            if not mailbox.empty():
                taken.append(mailbox.get().message)
        else:
            sent.append(Letter(number, step))
            mailbox.put(Envelope(sent[-1]))
    taken += letters(mailbox)
    assert sorted(letter.number for letter in taken) == [letter.number for letter in sent]


def test_the_stop_message_of_pykka_waits_its_turn() -> None:
    mailbox = Mailbox()
    mailbox.put(Envelope(Letter(1)))
    mailbox.put(Envelope(pykka.messages._ActorStop()))
    mailbox.put(Envelope(Letter(2)))
    assert mailbox.get().message == Letter(1)
    assert isinstance(mailbox.get().message, pykka.messages._ActorStop)


def test_the_next_message_is_taken_without_waiting_if_it_is_wanted_and_nothing_urgent_waits() -> None:
    mailbox = Mailbox()
    assert mailbox.get_next_if(lambda letter: True) is None
    mailbox.put_all([Envelope(Letter(1)), Envelope(Letter(2)), Envelope(Letter(3))])
    wanted = [1, 2].__contains__
    found = mailbox.get_next_if(lambda letter: wanted(letter.number))
    assert found is not None
    assert found.message == Letter(1)
    mailbox.put(Envelope(Letter(4, urgent=True)))
    assert mailbox.get_next_if(lambda letter: wanted(letter.number)) is None, "a cancel comes first"
    assert mailbox.get().message == Letter(4, urgent=True)
    assert mailbox.get_next_if(lambda letter: wanted(letter.number)) is not None
    assert mailbox.get_next_if(lambda letter: wanted(letter.number)) is None, "not wanted"
    assert letters(mailbox) == [Letter(3)]


def test_a_closed_mailbox_refuses_messages_that_come_together() -> None:
    mailbox = Mailbox()
    mailbox.close()
    with pytest.raises(ActorDeadError):
        mailbox.put_all([Envelope(Letter(1)), Envelope(Letter(2))])
    assert mailbox.empty()


def test_a_sleeper_is_woken_by_each_message_however_puts_and_gets_interleave() -> None:
    mailbox, count = Mailbox(), 3_000
    taken: list[int] = []

    def take() -> None:
        while len(taken) < 2 * count:
            taken.append(mailbox.get().message.number)

    taker = threading.Thread(target=take, daemon=True)
    taker.start()

    def send() -> None:
        for number in range(count):
            mailbox.put(Envelope(Letter(number, urgent=number % 7 == 0)))

    senders = [threading.Thread(target=send), threading.Thread(target=send)]
    for sender in senders:
        sender.start()
    taker.join(PATIENCE)
    assert not taker.is_alive()
    assert sorted(taken) == sorted([*range(count), *range(count)])


def test_get_blocks_until_something_is_put() -> None:
    mailbox = Mailbox()
    taken: list[object] = []
    got = threading.Event()

    def take() -> None:
        taken.append(mailbox.get().message)
        got.set()

    threading.Thread(target=take, daemon=True).start()
    assert not got.is_set()
    mailbox.put(Envelope(Letter(1)))
    assert got.wait(PATIENCE)
    assert taken == [Letter(1)]


def test_a_closed_mailbox_refuses_instead_of_swallowing() -> None:
    mailbox = Mailbox()
    mailbox.put(Envelope(Letter(1)))
    mailbox.put(Envelope(Letter(2, urgent=True)))
    assert [envelope.message for envelope in mailbox.close()] == [Letter(2, urgent=True), Letter(1)]
    assert mailbox.closed
    assert mailbox.empty()
    with pytest.raises(ActorDeadError):
        mailbox.put(Envelope(Letter(3)))
    assert mailbox.empty()


def test_asking_a_closed_mailbox_is_an_error() -> None:
    mailbox = Mailbox()
    mailbox.close()
    reply = pykka.ThreadingFuture[object]()
    mailbox.put(Envelope(Letter(1), reply_to=reply))
    with pytest.raises(ActorDeadError):
        reply.get(timeout=PATIENCE)


def test_a_message_without_a_reply_is_refused_by_raising() -> None:
    with pytest.raises(ActorDeadError):
        refuse(Envelope(Letter(1)))


@pytest.mark.parametrize("urgent", [False, True])
def test_it_closes_only_when_empty_if_asked_so(urgent: bool) -> None:
    mailbox = Mailbox()
    mailbox.put(Envelope(Letter(1, urgent)))
    assert not mailbox.close_if_empty()
    assert not mailbox.closed
    mailbox.get()
    assert mailbox.close_if_empty()
    assert mailbox.closed


def test_of_a_put_and_a_close_that_race_the_message_is_either_there_or_refused() -> None:
    for _ in range(300):
        mailbox = Mailbox()
        refused = threading.Event()

        def put(mailbox: Mailbox = mailbox, refused: threading.Event = refused) -> None:
            try:
                mailbox.put(Envelope(Letter(1)))
            except ActorDeadError:
                refused.set()

        sender = threading.Thread(target=put)
        sender.start()
        left = mailbox.close()
        sender.join(PATIENCE)
        assert len(left) + refused.is_set() == 1


class Counted(pykka.ThreadingActor):
    """pykka's contract: an actor takes its inbox from the class, before its ref is made."""

    use_daemon_thread = True
    made: list[Mailbox]

    @staticmethod
    def _create_actor_inbox() -> Mailbox:
        return Mailbox()

    def on_receive(self, message: object) -> object:
        return message


def test_pykka_honours_the_inbox_and_needs_no_more_than_put_get_and_empty() -> None:
    ref = Counted.start()
    try:
        assert isinstance(ref.actor_inbox, Mailbox)
        assert ref.ask(Letter(7), timeout=PATIENCE) == Letter(7)
    finally:
        assert ref.stop(timeout=PATIENCE)
    with pytest.raises(ActorDeadError):
        ref.tell(Letter(8))
