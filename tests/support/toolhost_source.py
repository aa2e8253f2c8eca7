"""The source of the tool host's program, module by module."""

from actors.adapters.sandbox import fork_server


def toolhost_source() -> list[tuple[str, str]]:
    """Return the modules of the tool host, by their names in its package, and their source, in the order of loading."""
    return [(name, fork_server.path_of(name).read_text()) for name in (*fork_server.MODULES, "toolhost")]
