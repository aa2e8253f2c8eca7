"""A network interface for each node, which can be pulled out: network namespaces of Linux.

The whole process has to be in one of its own (`entered`), so that nothing of the machine's network is touched.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import Self

HOST = "10.77.0.1"
"""Where this process is reached by the nodes."""
PORT = 7421
"""Of a node, which has its own address."""
_ENTERED = "BEDROCK_SOAK_NETWORK"
_PROGRAMS = ("unshare", "nsenter", "ip")


def entered() -> bool:
    """Whether this process has a network of its own."""
    return bool(os.environ.get(_ENTERED))


def hindrance() -> str:
    """Why this machine cannot give this process a network of its own; empty if it can."""
    if missing := [program for program in _PROGRAMS if shutil.which(program) is None]:
        return f"there is no {missing[0]}"
    if os.getuid() != 0:
        return "only root can"
    tried = subprocess.run(["unshare", "--net", "ip", "link", "add", "type", "bridge"], check=False)
    return "the kernel refuses it" if tried.returncode else ""


def again_in_a_network(module: str, arguments: Sequence[str]) -> int:
    """Run this program once more, in a network of its own; returns its exit code."""
    program = ["unshare", "--net", sys.executable, "-m", module, *arguments]
    return subprocess.run(program, env=os.environ | {_ENTERED: "1"}, check=False).returncode


class Networks:
    """An interface and an address for each of some nodes, for as long as the context is open."""

    def __init__(self, names: Sequence[str]) -> None:
        """The process must have `entered`."""
        self._numbers = {name: number for number, name in enumerate(names, 11)}
        self._holders: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        _ip("link", "set", "lo", "up")
        _ip("link", "add", "nodes", "type", "bridge")
        _ip("addr", "add", f"{HOST}/24", "dev", "nodes")
        _ip("link", "set", "nodes", "up")
        for name, number in self._numbers.items():
            self._plug(name, f"10.77.0.{number}/24")
        return self

    def __exit__(self, *_: object) -> None:
        for holder in self._holders.values():
            holder.communicate()  # it ends with its standard input
        _ip("link", "del", "nodes")

    def address(self, name: str) -> str:
        """Return where a node listens."""
        return f"10.77.0.{self._numbers[name]}:{PORT}"

    def within(self, name: str) -> str:
        """Return the command that runs another one with the node's interface."""
        return f"nsenter --net=/proc/{self._holders[name].pid}/ns/net"

    def unplug(self, name: str) -> None:
        """Whatever is sent to the node or by it is lost, and nobody is told."""
        _ip("link", "set", f"to-{name}", "down")

    def plug(self, name: str) -> None:
        """End `unplug`."""
        _ip("link", "set", f"to-{name}", "up")

    def _plug(self, name: str, address: str) -> None:
        holder = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "echo && exec cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._holders[name] = holder
        assert holder.stdout is not None
        assert holder.stdout.readline(), "the namespace of a node was not made"
        _ip("link", "add", f"to-{name}", "type", "veth", "peer", "name", "eth0", "netns", str(holder.pid))
        _ip("link", "set", f"to-{name}", "master", "nodes", "up")
        inside = self.within(name).split()
        for arguments in (f"addr add {address} dev eth0", "link set eth0 up", "link set lo up"):
            subprocess.run([*inside, "ip", *arguments.split()], check=True)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)
