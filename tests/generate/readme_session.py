"""Write the session in README.md from what the program prints: `python -m tests.generate.readme_session`.

It is what `make run` does without a terminal, in a new home, in a folder with one file. What differs from run to run
is replaced: the slug, the folder and durations.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.documents.pages import README, ROOT, with_fenced

MARKER = "session: written by `make readme-session`"
SECONDS = 90
FILE = "notes.txt"
HEAD = "$ bedrock chat --spawn </dev/null    # `make run` without a terminal\n"
SLUG, FOLDER, DURATION = "calm-brook-7xk2", "/home/ada/project", "0.1 s"


def environment(home: Path) -> dict[str, str]:
    """Of somebody who has just cloned this: no server, no key, no setting."""
    search = os.pathsep.join([str(ROOT), str(ROOT / "clients")])
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    alone = {"BEDROCK_ADDRESS": "127.0.0.1:1", "BEDROCK_LISTEN": "127.0.0.1:0"}  # no server of somebody else
    return {"PATH": programs, "HOME": str(home), "PYTHONPATH": search, "LANG": "C.UTF-8", **alone}


def session(folder: Path) -> str:
    """Play the session with homes and files below `folder`; returns what README shows."""
    home, work = folder / "home", folder / "project"
    home.mkdir()
    work.mkdir()
    (work / FILE).write_text("buy milk\n", encoding="utf-8")
    played = subprocess.run(
        [sys.executable, "-P", "-m", "bedrock.cli", "chat", "--spawn"],
        cwd=work,
        env=environment(home),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert played.returncode == 0, played.stdout
    return HEAD + normalised(played.stdout, work)


def normalised(printed: str, work: Path) -> str:
    """`printed` with one slug, one folder and one duration."""
    printed = printed.replace(str(work.resolve()), FOLDER)
    printed = re.sub(r"\b[a-z]+-[a-z]+-[a-km-np-z2-9]{4}\b", SLUG, printed)
    return re.sub(r"\b\d+\.\d s\b", DURATION, printed)


def main() -> None:
    page = README.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory(prefix="bedrock-readme-") as folder:
        fresh = session(Path(folder))
    README.write_text(with_fenced(page, MARKER, fresh), encoding="utf-8")


if __name__ == "__main__":
    main()
