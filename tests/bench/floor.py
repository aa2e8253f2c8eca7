"""The floor of the turn workload: bare threads and requests, no persistence, no events, no cancel."""

from collections.abc import Iterator
from typing import Any

import requests

from tests.bench.driver import Answer, Driver, body_of, calls_in, events_in, question, result_of


def events(response: requests.Response) -> Iterator[dict[str, Any]]:
    """The answer's events as they arrive: iter_lines would read byte by byte, and not be a floor."""
    rest = b""
    while piece := response.raw.read1(65536):
        found, rest = events_in(rest + piece)
        yield from found


def ask(session: requests.Session, url: str, messages: list[dict[str, Any]]) -> dict[str, Any]:
    """One streamed answer, put together."""
    answer = Answer()
    with session.post(url, json=body_of(messages), stream=True, timeout=60) as response:
        for event in events(response):
            answer.add(event)
    return answer.message


def turn(session: requests.Session, url: str, messages: list[dict[str, Any]]) -> None:
    """A question, an answer with two tools, their results, the end."""
    messages.append(question())
    messages.append(ask(session, url, messages))
    messages.append({"role": "user", "content": [result_of(call) for call in calls_in(messages[-1])]})
    messages.append(ask(session, url, messages))


def main() -> None:
    driver = Driver()

    def conversation(_: int) -> None:
        with requests.Session() as session:
            session.trust_env = False
            messages: list[dict[str, Any]] = []
            for _ in range(driver.turns):
                with driver.timed():
                    turn(session, driver.messages_url, messages)

    driver.on_threads(conversation)


if __name__ == "__main__":
    main()
