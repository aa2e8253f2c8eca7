"""Eight writers, on two nodes, patch the same files at once: what was answered "applied" is in them."""

import json
import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from actors.adapters.sandbox.toolhost_sandbox import ToolHostSandbox
from actors.core.context import Mode
from tests.integration.sandbox.test_restricted import REPORTS
from tests.support.sandbox_reports import sandbox_report
from tests.support.tool_harness import ToolHarness

PATCHES = int(os.environ.get("BEDROCK_PATCHES", "80"))
"""Patches of all writers together, in each mode."""

WRITERS = 8
MODES = {
    "unrestricted": (Mode.UNRESTRICTED, sandbox_report()),
    **{
        f"workspace in tier {tier}": (Mode.WORKSPACE, replace(report, workspace_available=True))
        for tier, report in REPORTS.items()
    },
}


@pytest.fixture(params=MODES)
def nodes(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[ToolHarness]]:
    """The tools of two nodes that share a working directory."""
    mode, report = MODES[request.param]
    sandboxes = [ToolHostSandbox(report) for _ in range(2)]
    yield [ToolHarness(sandbox, tmp_path, mode=mode) for sandbox in sandboxes]
    for sandbox in sandboxes:
        sandbox.close()


@dataclass
class Writer:
    """Patches shared files, each time by another operation, and notes what was applied."""

    tools: ToolHarness
    name: str
    replaced: int = 0
    added: list[str] = field(default_factory=list)
    overwritten: list[tuple[str, str]] = field(default_factory=list)
    """The content before and after, as the diff shows it."""

    def work(self, patches: int) -> None:
        """Make so many patches."""
        for number in range(patches):
            self.step(number)

    def step(self, number: int) -> None:
        text = f"{self.name}-{number}\n"
        match number % 5:
            case 0:
                old, new = f"{self.name} {self.replaced};", f"{self.name} {self.replaced + 1};"
                self.replaced += self.patch("lines", "replace", oldText=old, newText=new) is not None
            case 1 | 2 as way:
                applied = self.patch("lines", "append_eof" if way == 1 else "prepend_bof", newText=text)
                self.added += [text] if applied is not None else []
            case 3:
                if (diff := self.patch("whole", "overwrite", newText=text)) is not None:
                    before, after = re.findall(r"^[-+](\S+-\d+)$", diff, re.MULTILINE)
                    self.overwritten.append((before, after))
            case _:
                applied = self.patch(f"new-{number}", "append_eof", newText=text, created=True)
                self.added += [text] if applied is not None else []

    def patch(self, path: str, operation: str, *, created: bool = False, **fields: Any) -> str | None:
        """Return the diff, None if another one was just in time to create the file."""
        output = self.tools.use("patch", path=path, patches=[{"operation": operation, **fields}])
        if not output.is_error:
            return str(json.loads(output.display)["diff"])
        assert created, output.text
        assert "another program has just changed it" in output.text
        return None


def test_of_parallel_patches_none_is_lost(nodes: list[ToolHarness], tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("".join(f"writer-{number} 0;\n" for number in range(WRITERS)))
    (tmp_path / "whole").write_text("start-0\n")
    writers = [Writer(nodes[number % 2], f"writer-{number}") for number in range(WRITERS)]
    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(lambda writer: writer.work(PATCHES // WRITERS), writers))
    files = {path.name: path.read_text() for path in tmp_path.iterdir()}
    lost = [
        *(each.name for each in writers if f"{each.name} {each.replaced};\n" not in files["lines"]),
        *(text for each in writers for text in each.added if "".join(files.values()).count(text) != 1),
    ]
    assert lost == []
    assert not [name for name in files if name.startswith(".")]
    following = dict(pair for each in writers for pair in each.overwritten)
    assert len(following) == sum(len(each.overwritten) for each in writers)
    content = "start-0"
    while content in following:
        content = following.pop(content)
    assert (content + "\n", following) == (files["whole"], {})
