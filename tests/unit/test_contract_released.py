"""The contract is held to the one of the last release: it grows, and nothing of it changes or goes."""

import hashlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.documents.pages import ROOT

RELEASED = ROOT / "protos" / "released.binpb"
BUF = Path(sys.executable).with_name("buf")


def breaking(protos: Path) -> str:
    """What `buf breaking` finds in this folder against the released contract; "" if nothing."""
    done = subprocess.run(
        [BUF, "breaking", "--against", RELEASED], cwd=protos, capture_output=True, text=True, timeout=120, check=False
    )
    return done.stdout + done.stderr


def test_nothing_that_was_released_changes_or_goes(tmp_path: Path) -> None:
    assert breaking(ROOT / "protos") == ""
    changed = tmp_path / "protos"
    shutil.copytree(ROOT / "protos", changed)
    file = changed / "bedrock" / "v1" / "conversation_service.proto"
    text = file.read_text()
    assert text.count("  string next_page_token = 2;") > 1
    file.write_text(text.replace("  string next_page_token = 2;", "  string next_token = 2;", 1))
    assert "next_page_token" in breaking(changed)


def test_the_changelog_names_the_released_contract() -> None:
    """Whoever renews it says in which version, and that is read by those whom it breaks."""
    named = re.findall(
        r"`protos/released\.binpb` \(SHA-256 begins with `([0-9a-f]{16})`\)", (ROOT / "CHANGELOG.md").read_text()
    )
    assert named[:1] == [hashlib.sha256(RELEASED.read_bytes()).hexdigest()[:16]]


def test_the_newest_version_of_the_changelog_is_that_of_the_packages() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text()
    (newest, date), *_ = re.findall(r"^## \[(\d+\.\d+\.\d+)\] - (\d{4}-\d\d-\d\d)$", changelog, re.MULTILINE)
    assert f'version = "{newest}"' in (ROOT / "pyproject.toml").read_text()
    assert changelog.index("## [Unreleased]") < changelog.index(f"## [{newest}] - {date}")
