"""The unit for systemd: systemd accepts it and counts it as hardened, and tools are restricted in full under it."""

import subprocess
from pathlib import Path

from tests.peers import installed
from tests.peers.under_unit import NOBODY, UNIT
from tests.support.chat import Chat
from tests.support.fake_provider import FakeProvider, calls, says
from tests.support.server_process import Servers, provider

EXPOSURE = 35
"""The largest exposure, in tenths, as `systemd-analyze security` has it."""


def analyze(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True, timeout=60, check=False)


def test_systemd_knows_every_line(tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/bedrock/bin/bedrock", "/bin/true"))
    done = analyze("verify", "--man=no", unit)
    assert (done.returncode, done.stderr) == (0, "")


def test_it_is_hardened_as_far_as_the_sandbox_of_tools_allows() -> None:
    done = analyze("security", "--offline=true", f"--threshold={EXPOSURE}", UNIT)
    assert done.returncode == 0, done.stdout.splitlines()[-1]


def test_tools_are_restricted_by_namespaces_under_the_units_mounts(
    tmp_path: Path, start_server: Servers, fake_provider: FakeProvider
) -> None:
    server = start_server(
        tmp_path,
        "--sandbox",
        "A",
        program="tests.peers.under_unit",
        PYTHONPATH=str(installed.ROOT),
        **provider(fake_provider.url),
    )
    with server.client() as client:
        info = client.server_info()
        assert (info.sandbox.tier, info.sandbox.restricted_available) == ("a", True)
        work = tmp_path / "work"
        work.mkdir()
        chat = Chat(client, fake_provider.part(), work)
        chat.part.then(calls(("bash", {"command": "id -u; touch here; touch $HOME/there; ls /home"})), says("Done."))
        chat.ask("Try it.")
        ((_, output),) = [(role, text) for role, text in chat.said() if role == "tool"]
        assert output.splitlines()[0] == str(NOBODY)
        assert "'here': Read-only file system" in output
        assert "there" not in output
