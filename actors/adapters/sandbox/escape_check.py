"""A program that tries to break out of the sandbox in which it runs.

Its arguments are MODE PROTECTED_FILE OUTSIDE_FILE [NEIGHBOUR_FILE]. NEIGHBOUR_FILE belongs to another principal (user
or service) and must be inaccessible to this program. In workspace mode, the current directory is the workspace, in
which this program must be able to change files.

Prints which attempts succeeded, or CONFINED if none did. `probe.py` runs this program in a sandbox, and the server
offers that sandbox only if no attempt succeeded. The program imports only the standard library.
"""

import ctypes
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

CONFINED = b"kept"
CLONE_NEWUSER = 0x10000000


def check(mode: str, secret: str, outside: str, neighbour: str = "") -> None:
    tries: list[tuple[str, Callable[[], object]]]
    tries = [("protected files can be read", lambda: os.open(secret, os.O_RDONLY))]
    if mode != "unrestricted":
        libc = ctypes.CDLL(None, use_errno=True)
        inside = os.path.join(os.environ["TMPDIR"], "inside")
        folder = os.path.dirname(outside)
        os.close(os.open(inside, os.O_CREAT | os.O_WRONLY))
        tries += [
            ("files can be written anywhere", lambda: os.open(outside, os.O_CREAT | os.O_WRONLY)),
            ("file modes can be changed anywhere", lambda: os.chmod(folder, 0o700)),
            ("the network can be reached", lambda: checked(libc.socket(2, 1, 0))),
            ("namespaces can be created", lambda: checked(libc.unshare(CLONE_NEWUSER))),
        ]
    if mode == "workspace":
        os.mkdir("made")
        os.close(os.open("made/file", os.O_CREAT | os.O_WRONLY))
        os.rename("made/file", "made/moved")
        os.chmod("made/moved", 0o700)
        tries += [
            ("protected names can be created", lambda: os.mkdir("made/.git")),
            ("links can be followed out of it", lambda: os.open("link", os.O_CREAT | os.O_WRONLY)),
        ]
        os.symlink(outside, "link")
    if neighbour:
        tries += [
            ("other principals' files can be read", lambda: os.open(neighbour, os.O_RDONLY)),
            ("other principals' directories can be listed", lambda: os.listdir(os.path.dirname(neighbour))),
        ]
    found = [what for what, attempt in tries if succeeds(attempt)]
    os.write(1, "; ".join(found).encode() or CONFINED)


def checked(result: int) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused by the kernel")


def succeeds(attempt: "Callable[[], object]") -> bool:
    try:
        attempt()
    except OSError:
        return False
    return True


if __name__ == "__main__":
    check(*sys.argv[1:])
