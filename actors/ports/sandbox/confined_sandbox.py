"""A sandbox that is confined to the permissions of one principal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from actors.ports.sandbox.processes import SandboxUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors.core.context import Mode
    from actors.ports.permissions import Permissions
    from actors.ports.sandbox.processes import Launch, RunningProcess, Sandbox, SandboxReport


class ConfinedSandbox:
    """Implements Sandbox for one principal, whose permissions limit the modes, and the directories that programs read.

    Therefore no tool needs to check the permissions of principals, and no tool can forget to do so.
    """

    def __init__(self, sandbox: Sandbox, permissions: Permissions) -> None:
        self._sandbox = sandbox
        self._permissions = permissions

    @property
    def report(self) -> SandboxReport:
        """The restrictions that this machine can enforce."""
        return self._sandbox.report

    @property
    def protected(self) -> tuple[str, ...]:
        """The real paths that no tool may access."""
        return self._sandbox.protected

    def mode_refusal(self, mode: Mode, directory: str) -> str:
        """Return why programs cannot run in this mode in this directory; "" if they can."""
        return self._permissions.refusal(mode) or self._sandbox.mode_refusal(mode, directory)

    def start(self, launch: Launch, on_output: Callable[[bytes], None]) -> RunningProcess:
        """Start a program that can read only what the principal may read.

        Raises ProcessStartError, or SandboxUnavailableError, also if the principal may not use the mode.
        """
        if refusal := self._permissions.refusal(launch.mode):
            raise SandboxUnavailableError(f"{launch.mode.value} mode: {refusal}")
        return self._sandbox.start(replace(launch, readable=self._permissions.roots), on_output)
