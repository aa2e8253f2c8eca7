"""The Containerfile as the tests read it: its stages, each a list of instructions."""

from typing import NamedTuple

from tests.documents.pages import ROOT

CONTAINERFILE = ROOT / "server" / "deploy" / "Containerfile"


class Instruction(NamedTuple):
    """An instruction, such as RUN, and what stands after it."""

    name: str
    text: str


def stages() -> list[list[Instruction]]:
    """Return the instructions of each stage, which begins with FROM."""
    found: list[list[Instruction]] = []
    for line in CONTAINERFILE.read_text(encoding="utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        name, _, text = line.partition(" ")
        if name == "FROM":
            found.append([])
        found[-1].append(Instruction(name, text))
    return found
