"""The allowlist of a tool's environment."""

from __future__ import annotations

from actors.adapters.tools.environment import tool_environment


def test_only_listed_names_pass() -> None:
    server = {"PATH": "/p", "HOME": "/h", "LC_ALL": "C", "TERM": "xterm", "AWS_SECRET_ACCESS_KEY": "s", "PATHS": "x"}
    assert tool_environment(server) == {"PATH": "/p", "HOME": "/h", "LC_ALL": "C", "TERM": "dumb"}


def test_a_path_and_a_home_are_always_there() -> None:
    env = tool_environment({})
    assert set(env) == {"PATH", "HOME", "TERM"}
    assert "/bin" in env["PATH"]
