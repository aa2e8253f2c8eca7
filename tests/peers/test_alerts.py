"""The rules for alarms: Prometheus accepts them, and each fires when it should and only then."""

import shutil
import subprocess
from pathlib import Path

from tests.peers import installed

RULES = installed.ROOT / "server" / "deploy" / "bedrock.rules.yml"
PROGRAM = shutil.which("promtool") or installed.PROMTOOL


def promtool(*arguments: str | Path, folder: Path) -> str:
    """What promtool says. Fails if it finds anything wrong."""
    done = subprocess.run([PROGRAM, *arguments], cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_prometheus_accepts_the_rules(tmp_path: Path) -> None:
    assert "SUCCESS: 12 rules found" in promtool("check", "rules", RULES, folder=tmp_path)


def test_each_rule_fires_when_it_should(tmp_path: Path) -> None:
    shutil.copy(RULES, tmp_path)
    shutil.copy(Path(__file__).with_name("alerts_test.yml"), tmp_path)
    assert "SUCCESS" in promtool("test", "rules", "alerts_test.yml", folder=tmp_path)
