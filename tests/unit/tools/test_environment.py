"""The allowlist of a tool's environment."""

from actors.adapters.tools.program_launch import tool_environment


def test_only_listed_names_pass() -> None:
    server = {"PATH": "/p", "HOME": "/h", "LC_ALL": "C", "TERM": "xterm", "AWS_SECRET_ACCESS_KEY": "s", "PATHS": "x"}
    plain = {"NO_COLOR": "1", "PAGER": "cat", "GIT_PAGER": "cat", "TERM": "dumb"}
    assert tool_environment(server) == {"PATH": "/p", "HOME": "/h", "LC_ALL": "C"} | plain


def test_a_path_and_a_home_are_always_there() -> None:
    env = tool_environment({})
    assert set(env) == {"PATH", "HOME", "TERM", "NO_COLOR", "PAGER", "GIT_PAGER"}
    assert "/bin" in env["PATH"]


def test_what_the_server_s_user_has_set_of_pagers_and_colours_is_kept() -> None:
    chosen = {"NO_COLOR": "", "PAGER": "less", "GIT_PAGER": "delta"}
    assert tool_environment(chosen).items() >= chosen.items()
