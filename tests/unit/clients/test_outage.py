"""A server that goes away while somebody looks, and comes back: both are told."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from bedrock import v1

from tests.support.fake_server import SLUG, FakeBedrock, Gate, state, stored
from tests.support.terminals import ROOT, Terminal

LOST = "connection lost, trying again"
# Without an address, a call of the system, or the name of a file.
WHY = "(the server does not answer)"
BACK = "connected again"


@pytest.fixture(autouse=True)
def opened(fake: FakeBedrock) -> Iterator[None]:
    """Have the streams end when the test does."""
    fake.happen(stored("agent", v1.ContentBlock(text="Hello.")))
    yield
    fake.close()


def test_watching_at_a_terminal_tells_that_the_connection_is_lost_and_back(address: str, fake: FakeBedrock) -> None:
    with Terminal("watch", SLUG, environ={"BEDROCK_ADDRESS": address}) as terminal:
        terminal.shows("Hello.")
        fake.close()
        terminal.shows(LOST)
        terminal.shows(WHY)
        fake.open()
        terminal.shows(BACK)
        terminal.keys("\x03")
        assert terminal.ends() == 130


@pytest.mark.parametrize("output", ["text", "stream-json"])
def test_watching_through_a_pipe_tells_it_on_standard_error(address: str, fake: FakeBedrock, output: str) -> None:
    command = [sys.executable, "-P", "-m", "bedrock.cli", "watch", SLUG, "--output", output]
    environ = {**os.environ, "BEDROCK_ADDRESS": address}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ, cwd=ROOT
    ) as watching:
        try:
            assert watching.stdout is not None
            assert watching.stderr is not None
            while "Hello." not in watching.stdout.readline():
                pass
            fake.close()
            assert watching.stderr.readline() == f"{LOST}… {WHY}\n"
            fake.open()
            assert BACK in watching.stderr.readline()
        finally:
            watching.kill()


def test_the_status_line_of_a_question_tells_that_the_connection_is_lost(address: str, fake: FakeBedrock) -> None:
    fake.answers.append(lambda run: [state("llm_requesting", run), Gate()])
    with Terminal("ask", "Wait", environ={"BEDROCK_ADDRESS": address}) as terminal:
        terminal.shows("Ctrl-C cancels")
        fake.close()
        terminal.until(lambda screen: f"{LOST}…" in screen)
        assert not any("Ctrl-C cancels" in line for line in terminal.screen)


def test_an_idle_chat_notices_that_the_server_is_back(address: str, fake: FakeBedrock) -> None:
    with Terminal("chat", environ={"BEDROCK_ADDRESS": address}) as terminal:
        terminal.shows("Hello.")
        fake.close()
        terminal.shows(LOST)
        fake.open()
        terminal.shows(BACK)
        terminal.idles()
        terminal.keys("\x04")
        assert terminal.ends() == 0
