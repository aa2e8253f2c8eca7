"""What tools cannot read (the setting `deny_read`), in every mode in which the sandbox can keep them from it."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from actors.adapters.sandbox.toolhost_sandbox import ToolHostSandbox
from actors.core.context import Mode
from actors.ports import SandboxUnavailableError
from tests.integration.sandbox.test_restricted import REPORTS, run
from tests.support.tool_harness import ToolHarness

WAYS = [(tier, mode) for tier in REPORTS for mode in Mode if mode is not Mode.UNRESTRICTED or tier == "A"]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory with keys, a link to them from a project, and a file that is read."""
    for name in (".ssh/id", "keys/key", "project/file"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("secret\n" if name != "project/file" else "content\n")
    (tmp_path / ".netrc").write_text("secret\n")
    (tmp_path / ".aws").symlink_to("keys")
    (tmp_path / "project" / "link").symlink_to(tmp_path / ".ssh" / "id")
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.fixture(params=WAYS, ids=lambda way: f"{way[0]}-{way[1].value}")
def way(request: pytest.FixtureRequest, home: Path) -> Iterator[tuple[ToolHostSandbox, Mode]]:
    tier, mode = request.param
    report = replace(REPORTS[tier], workspace_available=True)
    sandbox = ToolHostSandbox(report, deny_read=("~/.ssh", "~/.aws", "~/.netrc", "~/missing"))
    yield sandbox, mode
    sandbox.close()


def test_nothing_of_it_is_read_by_any_name(way: tuple[ToolHostSandbox, Mode], home: Path) -> None:
    sandbox, mode = way
    command = f"cat {home}/.ssh/id {home}/.aws/key {home}/keys/key {home}/.netrc link ../.ssh/id; cat file"
    end = run(sandbox, command, mode=mode, cwd=str(home / "project"))
    assert b"secret" not in end.head
    assert end.head.endswith(b"content\n")


def test_nor_is_it_changed(way: tuple[ToolHostSandbox, Mode], home: Path) -> None:
    sandbox, mode = way
    run(
        sandbox,
        f"echo x > {home}/.ssh/id; rm -rf {home}/keys/key; echo x >> link",
        mode=mode,
        cwd=str(home / "project"),
    )
    assert [(home / name).read_text() for name in (".ssh/id", "keys/key", ".netrc")] == ["secret\n"] * 3


def test_nothing_runs_in_it(way: tuple[ToolHostSandbox, Mode], home: Path) -> None:
    sandbox, mode = way
    with pytest.raises(SandboxUnavailableError, match="cannot read"):
        run(sandbox, "cat id", mode=mode, cwd=str(home / ".ssh"))


def test_what_is_not_on_the_list_is_read(home: Path) -> None:
    for tier, report in REPORTS.items():
        sandbox = ToolHostSandbox(report)
        assert run(sandbox, "cat link", cwd=str(home / "project")).head == b"secret\n", tier
        sandbox.close()


@pytest.mark.parametrize("name", ["link", "../.ssh/id"])
def test_tools_that_read_files_themselves_are_kept_from_it(
    way: tuple[ToolHostSandbox, Mode], home: Path, name: str
) -> None:
    sandbox, mode = way
    tools = ToolHarness(sandbox, home / "project", mode=mode)
    assert tools.use("read_file", path="file").text.endswith("content\n")
    path = str(home / "project" / name)
    for output in (
        tools.use("read_file", path=path),
        tools.use("read_image", path=path),
        tools.use("search", pattern="secret", path=path),
        tools.use("bash", cmd=f"cat {path}"),
    ):
        assert "secret\n" not in output.text


def test_the_list_by_default_is_of_the_home_of_the_server_s_user(home: Path) -> None:
    sandbox = ToolHostSandbox(next(iter(REPORTS.values())), deny_read=("~/.ssh", "/keys"))
    assert sandbox.unreadable == tuple(sorted((os.path.realpath("/keys"), str(home / ".ssh"))))
    sandbox.close()
