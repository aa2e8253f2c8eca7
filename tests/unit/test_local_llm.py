"""Where `make local-llm` keeps its conversations."""

from pathlib import Path

import pytest

from tests.peers.local_llm import data_directory


@pytest.mark.parametrize(
    ("environ", "directory"),
    [
        ({"HOME": "/h"}, "/h/.local/state/bedrock-local-llm"),
        ({"HOME": "/h", "XDG_STATE_HOME": "/s"}, "/s/bedrock-local-llm"),
        ({"HOME": "/h", "XDG_STATE_HOME": "/s", "BEDROCK_DATA_DIR": "/d"}, "/d"),
    ],
)
def test_the_conversations_are_kept_where_the_environment_says(environ: dict[str, str], directory: str) -> None:
    assert data_directory(environ) == Path(directory)


def test_a_relative_data_directory_is_refused() -> None:
    with pytest.raises(ValueError, match="BEDROCK_DATA_DIR"):
        data_directory({"BEDROCK_DATA_DIR": "here"})
