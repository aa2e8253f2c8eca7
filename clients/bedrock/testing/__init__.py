"""A test kit for programs that use Bedrock: a private server whose model gives the answers that the test sets.

pytest loads the plugin with the fixtures wherever this package is installed::

    def test_the_agent_looks_at_the_files(bedrock, tmp_path):
        bedrock.model.calls("bash", cmd="ls")
        bedrock.model.answers("There are no files.")
        conversation = bedrock.client.create(tmp_path)
        assert conversation.ask("Which files are here?") == "There are no files."
        assert "bash" in bedrock.model.requests[0].tools

The fixture `bedrock` is a `Bedrock` object; the fixture `start_bedrock` starts further servers. The server is a process
of its own, started once per session (and worker of pytest-xdist). It ignores the Bedrock settings of the user who runs
the tests, and needs the server with its extra: ``pip install ./clients '.[testing]'`` in the checkout.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bedrock.testing.exchange import Exchange, Gate
    from bedrock.testing.harness import Bedrock
    from bedrock.testing.model_server import ModelServer
    from bedrock.testing.private_server import PrivateServer
    from bedrock.testing.script import Script, ScriptedModel

__all__ = ["Bedrock", "Exchange", "Gate", "ModelServer", "PrivateServer", "Script", "ScriptedModel"]

_HOMES = {
    "Bedrock": "harness", "Exchange": "exchange", "Gate": "exchange", "ModelServer": "model_server",
    "PrivateServer": "private_server", "Script": "script", "ScriptedModel": "script",
}  # fmt: skip


def __getattr__(name: str) -> object:
    """Import a name when it is first used: pytest loads the plugin in projects that do not use it, too."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
