"""curl knows nothing of this project: every recipe of docs/api/http.md is run, in order, as a reader would."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.documents.pages import ROOT, fenced
from tests.support.patience import PATIENCE
from tests.support.server_process import Servers, http_url

PAGE = (ROOT / "docs" / "api" / "http.md").read_text(encoding="utf-8")
RECIPES = {
    "connect": ['"version"', '"maxRequestBytes"'],
    "create": ["STATE_KIND_IDLE", '"slug":"first-steps"'],
    "own": ["tools/read_file", '"autoContinue":true', "REASONING_EFFORT_NONE"],
    "send": [
        "DISPOSITION_DIRECT",
        "event: snapshot",
        "id: 1\nevent: messageAdded",
        "AWAITING_TOOL_APPROVAL",
        "event: end",
    ],
    "approve": ["APPROVAL_DECISION_APPROVE", "it works", "event: runStopped", "event: end"],
    "stream": ["event: response", "event: textDelta", "event: runStopped", "event: end"],
    "rules": ['"commandPrefix":"git push"'],
    "steer and follow up": ["DISPOSITION_DIRECT", "DISPOSITION_STEER_QUEUED", "DISPOSITION_FOLLOW_UP_QUEUED"],
    "cancel": ["STATE_KIND_IDLE", "returnedSteers", "discardedFollowUps"],
    "read": ['"nextPageToken"', '"rounds"', '"slug":"first-steps"'],
    "fork": ['"slug":"second-try"', "forkedFrom", "subAgents"],
    "export": ['{"kind":"conversation"', '{"kind":"event"'],
}
"""What each recipe prints, among other things."""


@pytest.mark.one_server("it reads the token of the server's directory")
def test_the_recipes_for_curl_do_what_they_say(start_server: Servers, tmp_path: Path) -> None:
    server = start_server(tmp_path, "--http", "127.0.0.1:0")
    assert re.findall(r"<!-- recipe: (.+?) -->", PAGE) == list(RECIPES)
    assert PAGE.count("```bash") == len(RECIPES)
    script = "\n".join(f"echo; echo '# {name}'\n{fenced(PAGE, f'recipe: {name}')}" for name in RECIPES)
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", script],
        env={"PATH": os.environ["PATH"], "BEDROCK_DATA_DIR": str(server.data), "BEDROCK_URL": http_url(server)},
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,  # two runs of the demo model
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    _, *printed = re.split(r"^# .+$", done.stdout, flags=re.MULTILINE)
    for (name, wanted), answer in zip(RECIPES.items(), printed, strict=True):
        assert [text for text in wanted if text not in answer] == [], f"{name}: {answer}"
