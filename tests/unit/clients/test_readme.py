"""The examples of the clients' README run as they stand."""

import re
from pathlib import Path

import pytest

from tests.support.fake_server import FakeBedrock, asks_person, ends_with, says, uses_tool

README = Path(__file__).parents[3] / "clients" / "README.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_the_examples_run(
    example: str, address: str, fake: FakeBedrock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BEDROCK_ADDRESS", address)
    first = uses_tool("pytest", "a", "Done.", ask=True) if "approve" in example else says("Done.")
    if "output_schema" in example:
        first = ends_with({"lines": "Done."})
    if "on_question" in example:
        first = asks_person(server="git")
    fake.answers.extend([first, says("Done.")])
    exec(example, {"__name__": "__main__"})
    assert capsys.readouterr().out.strip().endswith("Done.")


def test_there_are_examples() -> None:
    assert len(EXAMPLES) == 10
