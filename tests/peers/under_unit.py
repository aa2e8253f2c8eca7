"""Runs the server as its unit for systemd has it, without systemd: `python -m tests.peers.under_unit ARGUMENTS…`.

Started by root. Applies to itself what the unit's lines mean: the mounts, no capabilities, no new privileges, another
user; then it becomes `python -m server`. The filter of system calls is not applied. The folder that it starts in takes
the place of the state directory. Standard library only.
"""

import configparser
import ctypes
import os
import stat
import sys
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "server/deploy/bedrock.service"
HANDLED = {
    "NoNewPrivileges", "CapabilityBoundingSet", "AmbientCapabilities", "ProtectSystem", "ProtectHome", "PrivateTmp",
    "PrivateDevices", "PrivateIPC", "ProtectControlGroups", "ProtectHostname", "User", "UMask",
}  # fmt: skip
"""Lines of the unit that are applied here."""
WITHOUT_EFFECT_ON_TOOLS = {
    "ProtectClock", "ProtectKernelModules", "LockPersonality", "RestrictRealtime", "RestrictSUIDSGID", "RemoveIPC",
    "KeyringMode", "RestrictAddressFamilies", "SystemCallArchitectures", "SystemCallFilter", "SystemCallErrorNumber",
}  # fmt: skip
"""Lines that are filters of system calls, or take what no capability is left for."""
NOBODY = 65534
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x20000, 0x04000000, 0x08000000
PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 24, 38
libc = ctypes.CDLL(None, use_errno=True)


def service() -> dict[str, str]:
    """The lines of the unit's section [Service]."""
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign] # names keep their case
    unit.read(UNIT)
    return dict(unit["Service"])


def checked(result: int) -> None:
    """Raise OSError if a call of the C library has failed."""
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def mount(source: str | Path, target: str | Path, kind: str = "", flags: int = 0, data: str = "") -> None:
    checked(libc.mount(os.fsencode(source), os.fsencode(target), kind.encode(), flags, data.encode()))


def bind(source: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    mount(source, target, flags=MS_BIND | MS_REC)


def read_only(path: str) -> None:
    """Make a mount read-only; not one that another mount hides, nor one whose flags must not be changed."""
    with suppress(OSError):
        kept = os.statvfs(path).f_flag & (MS_NOSUID | MS_NODEV | os.ST_NOEXEC)
        mount("none", path, flags=MS_REMOUNT | MS_BIND | MS_RDONLY | kept)


def mounts() -> list[str]:
    with open("/proc/self/mountinfo", encoding="utf-8") as table:
        return [line.split()[4].replace("\\040", " ") for line in table]


def enter(folder: Path) -> Path:
    """Apply the unit's mounts. Returns where the project is then."""
    checked(libc.unshare(CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS))
    mount("none", "/", flags=MS_REC | MS_PRIVATE)
    python = Path(os.path.realpath(sys.base_prefix))
    kept = Path("/mnt")
    mount("tmpfs", kept, "tmpfs", data="mode=0755")
    project = Path("/opt/bedrock")
    for name, path in (("state", folder), ("python", python), ("project", ROOT)):
        bind(path, kept / name)
    for hidden in ("/root", "/home", "/tmp", "/var/tmp", "/opt"):
        mount("tmpfs", hidden, "tmpfs", data="mode=1777" if hidden.endswith("tmp") else "mode=0755")
    devices()
    bind(kept / "state", folder)
    bind(kept / "project", project)
    if not python.exists():
        bind(kept / "python", python)
    for point in mounts():
        if point != str(folder) and not point.startswith(("/proc", "/dev", "/tmp", "/var/tmp")):
            read_only(point)
    return project


def devices() -> None:
    """Mount a /dev with the devices that PrivateDevices leaves."""
    numbers = {name: os.stat(f"/dev/{name}").st_rdev for name in ("null", "zero", "full", "random", "urandom", "tty")}
    mount("tmpfs", "/dev", "tmpfs", MS_NOSUID, "mode=0755")
    for name, number in numbers.items():
        os.mknod(f"/dev/{name}", stat.S_IFCHR | 0o666, number)
        os.chmod(f"/dev/{name}", 0o666)
    for name, mode in (("shm", 0o1777), ("pts", 0o755)):
        os.mkdir(f"/dev/{name}")
        os.chmod(f"/dev/{name}", mode)


def drop_rights() -> None:
    """Become another user without capabilities, and with no way to get any."""
    with open("/proc/sys/kernel/cap_last_cap", encoding="ascii") as file:
        last = int(file.read())
    for capability in range(last + 1):
        checked(libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0))
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    checked(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))


def main() -> None:
    """Become the server."""
    if unknown := service_lines_that_nobody_handles():
        raise SystemExit(f"the unit has lines that this program does not know: {', '.join(sorted(unknown))}")
    folder = Path.cwd()
    for path in (folder, *folder.rglob("*")):
        os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    project = enter(folder)
    os.umask(int(service()["UMask"], 8))
    os.chdir(folder)
    packages = f"{project}/.venv/lib/python3.{sys.version_info.minor}/site-packages"
    os.environ["PYTHONPATH"] = f"{project}:{project}/clients:{packages}"
    python = os.path.realpath(sys.executable)
    drop_rights()
    os.execv(python, [python, "-m", "server", *sys.argv[1:]])


def service_lines_that_nobody_handles() -> set[str]:
    """Restrictions of the unit that this program does not know."""
    lines = {name for name in service() if name.startswith(("Protect", "Private", "Restrict", "SystemCall", "No"))}
    return lines - HANDLED - WITHOUT_EFFECT_ON_TOOLS - {"NotifyAccess"}


if __name__ == "__main__":
    main()
