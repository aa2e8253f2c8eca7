"""The server's own files stay hidden from a running tool when they are saved anew, moved, or their links are turned."""

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from actors.adapters.sandbox.probe import landlock_abi
from actors.adapters.sandbox.toolhost_sandbox import ToolHostSandbox
from actors.core.context import Mode
from actors.ports import SandboxReport
from tests.fault.escapes import namespaces_possible
from tests.support.trees import BOUND, launch

ABI = min(landlock_abi(), 7)
WAYS = {
    "A": SandboxReport("A", ABI, pid_namespace=True),
    "B": SandboxReport("B", ABI, pid_namespace=False),
    "unrestricted": SandboxReport("none", ABI, pid_namespace=True, hides_protected=True),
}


class Machine:
    """A directory with settings, a key of certbot's kind and one of Kubernetes', the server's data, and a project."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.chmod(0o755)
        self.settings = self.write("bedrock/config.toml")
        self.shared = self.write("project/server.toml")
        self.write("archive/key1.pem")
        self.write("live/unused")
        self.key = root / "live" / "key.pem"
        self.key.symlink_to("../archive/key1.pem")
        for name in ("archive", "live"):
            (root / name).chmod(0o700)
        self.write("volume/..1/tls.key")
        (root / "volume" / "..data").symlink_to("..1")
        self.volume = root / "volume" / "tls.key"
        self.volume.symlink_to("..data/tls.key")
        self.data = self.write("data/token").parent

    @property
    def protected(self) -> list[str]:
        return [str(path) for path in (self.settings, self.shared, self.key, self.volume, self.data)]

    def write(self, name: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("secret\n")
        return path

    def save(self, path: Path) -> None:
        """Replace a file in one step, as editors do."""
        self.write(f"{path.relative_to(self.root)}.new").replace(path)

    def turn(self, link: Path, target: str) -> None:
        new = link.with_name("turned")
        new.symlink_to(target)
        new.replace(link)

    def renew(self) -> None:
        self.write("archive/key2.pem")
        self.turn(self.key, "../archive/key2.pem")

    def update_volume(self) -> None:
        self.write("volume/..2/tls.key")
        self.turn(self.root / "volume" / "..data", "..2")


CHANGES: dict[str, tuple[Callable[[Machine], object], str]] = {
    "settings are saved": (lambda machine: machine.save(machine.settings), "bedrock/config.toml"),
    "a key is renewed": (lambda machine: machine.renew(), "live/key.pem archive/*"),
    "a volume is updated": (lambda machine: machine.update_volume(), "volume/tls.key volume/..*/*"),
    "data are moved": (lambda machine: (machine.root / "data").rename(machine.root / "moved"), "moved/token"),
    "a token is saved": (lambda machine: machine.save(machine.data / "token"), "data/token"),
}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    if request.param != "B" and not namespaces_possible():
        pytest.skip("this kernel allows no namespaces")
    if request.param != "unrestricted" and not ABI:
        pytest.skip("this kernel has no Landlock")
    return str(request.param)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setenv("HOME", "/nonexistent")
    monkeypatch.setattr("tempfile.tempdir", "/var/tmp")
    return Machine(tmp_path)


@pytest.fixture
def sandbox(way: str, machine: Machine) -> Iterator[ToolHostSandbox]:
    made = ToolHostSandbox(WAYS[way], protected=machine.protected)
    yield made
    made.close()


def read_after(sandbox: ToolHostSandbox, machine: Machine, change: Callable[[Machine], object], names: str) -> bytes:
    """What a tool reads that began before the change."""
    begun = threading.Event()
    go = machine.root / "go"
    os.mkfifo(go)
    mode = Mode.RESTRICTED if sandbox.report.restriction_available else Mode.UNRESTRICTED
    command = f"echo up; read line < go; cat {names} 2>/dev/null; echo over"
    tree = sandbox.start(launch(command, cwd=str(machine.root), mode=mode), lambda _: begun.set())
    assert begun.wait(BOUND)
    change(machine)
    go.write_text("on\n")
    end = tree.wait()
    assert end.head.startswith(b"up\n")
    assert end.head.endswith(b"over\n")
    return end.head


@pytest.mark.parametrize("kind", CHANGES)
def test_a_running_tool_does_not_see_what_takes_a_file_s_place(
    sandbox: ToolHostSandbox, machine: Machine, kind: str
) -> None:
    change, names = CHANGES[kind]
    assert b"secret" not in read_after(sandbox, machine, change, names)
    kept = (machine.root / name for name in ("bedrock/config.toml", "archive/key1.pem"))
    assert all(path.read_text() == "secret\n" for path in kept)


def test_a_file_in_a_directory_that_others_need_is_closed_to_restricted_tools(
    sandbox: ToolHostSandbox, machine: Machine, way: str
) -> None:
    assert sandbox.exposed == (str(machine.shared),)
    read = read_after(sandbox, machine, lambda machine: machine.save(machine.shared), "project/server.toml")
    assert (b"secret" in read) is (way == "unrestricted"), "as docs/security.md says"


def test_the_next_call_hides_what_the_links_lead_to_now(sandbox: ToolHostSandbox, machine: Machine) -> None:
    machine.write("elsewhere/key")
    machine.turn(machine.key, "../elsewhere/key")
    assert b"secret" not in read_after(sandbox, machine, lambda _: None, "elsewhere/key live/key.pem")
