"""Quotas of principals at a real server: refused with what is used up, told to whom they belong, kept over a crash."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from bedrock import Client
from bedrock.errors import QuotaExceeded, RunInterrupted

from tests.e2e.test_principals import token
from tests.support.patience import PATIENCE
from tests.support.server_process import ServerProcess, Servers

SETTINGS = """
[quotas]
concurrent_runs = 1000
[principal_defaults.quotas]
streams = 1
[principals.ada]
roots = ["{folder}"]
quotas = {{tokens_per_day = 1}}
[principals.bob]
roots = ["{folder}"]
quotas = {{calls_per_second = 1}}
"""


@pytest.fixture
def start(start_server: Servers, tmp_path: Path) -> Callable[[], ServerProcess]:
    (tmp_path / "config.toml").write_text(SETTINGS.format(folder=tmp_path))
    return lambda: start_server(tmp_path, "--config", str(tmp_path / "config.toml"))


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def refusal(call: Callable[[], object], times: int = 1) -> QuotaExceeded:
    """The refusal of one of so many calls."""
    for _ in range(times):
        try:
            call()
        except QuotaExceeded as refused:
            return refused
    raise AssertionError("no call was refused")


@pytest.mark.one_server("the server is killed and restarted")
def test_what_is_spent_is_refused_told_and_kept_when_the_server_is_killed(
    start: Callable[[], ServerProcess], tmp_path: Path, opened: ExitStack
) -> None:
    server = start()
    secrets = {name: token(tmp_path, "create", name) for name in ("ada", "bob")}

    def client(name: str) -> Client:
        return opened.enter_context(Client(server.address, token=secrets[name], timeout=PATIENCE))

    ada, bob = client("ada"), client("bob")
    talk = ada.create(working_directory=str(tmp_path))
    with pytest.raises(RunInterrupted, match="budget"):
        talk.ask("hello")  # its answer calls a tool, so that another request is due
    refused = refusal(lambda: talk.send("more"))
    used = int(refused.metadata["used"])
    assert used > 0
    assert refused.metadata == {"quota": "tokens_per_day", "limit": "1", "used": str(used), "principal": "ada"}
    assert refused.retry_after is not None
    assert 0 < refused.retry_after <= 86_400
    assert [(each.principal, each.quota, each.used) for each in ada.quotas()] == [
        ("ada", "concurrent_model_requests", 0),
        ("ada", "streams", 0),
        ("ada", "tokens_per_day", used),
    ]

    refused = refusal(bob.server_info, times=1_000)
    assert (refused.metadata["quota"], refused.metadata["principal"]) == ("calls_per_second", "bob")
    assert {each.principal for each in bob.quotas()} == {"bob"}

    server.kill()
    server = start()
    again = client("ada")
    refused = refusal(lambda: again.conversation(talk.name).send("more"))
    assert refused.metadata["used"] == str(used)
    with server.client() as operator:
        seen = {(each.principal, each.quota) for each in operator.quotas()}
        assert {("", "concurrent_runs"), ("ada", "tokens_per_day"), ("bob", "calls_per_second")} <= seen
        operator.create(working_directory=str(tmp_path)).ask("hello")
