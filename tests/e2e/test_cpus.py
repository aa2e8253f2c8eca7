"""The setting `cpus`: every thread of the server runs on these, and what bash runs has all."""

import os
from pathlib import Path

import pytest

from tests.support.chat import Chat
from tests.support.fake_provider import FakeProvider, calls, says
from tests.support.server_process import Servers, provider

pytestmark = pytest.mark.one_server("it looks into the server's process")

ALL = os.sched_getaffinity(0)


@pytest.mark.skipif(len(ALL) < 2, reason="this machine gives the tests one CPU")
def test_the_server_runs_on_its_cpus_and_its_tools_on_all(
    start_server: Servers, fake_provider: FakeProvider, tmp_path: Path
) -> None:
    server = start_server(tmp_path, BEDROCK_CPUS=str(max(ALL)), **provider(fake_provider.url))
    with server.client() as client:
        part = fake_provider.part(calls(("bash", {"cmd": "nproc"})), says("Done."))
        chat = Chat(client, part, tmp_path)
        assert chat.ask("How many?") == "Done."
        ((_, output),) = [said for said in chat.said() if said[0] == "tool"]
    assert output.split()[0] == str(len(ALL))
    threads = [int(thread) for thread in os.listdir(f"/proc/{server.pid}/task")]
    assert {frozenset(os.sched_getaffinity(thread)) for thread in threads} == {frozenset({max(ALL)})}
