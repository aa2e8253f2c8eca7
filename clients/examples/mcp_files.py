"""Lets an agent work with the reference MCP server for files: `python mcp_files.py DIRECTORY QUESTION`.

The server's settings are in mcp_files.toml beside this file. The user is asked before each call of a tool that may
change something.
"""

from __future__ import annotations

import sys
import time

from bedrock import Approval, Client


def wait_for(client: Client, name: str, seconds: float = 60.0) -> None:
    """Wait until an MCP server is connected, because a run has only the tools that are known when it begins."""
    until = time.monotonic() + seconds
    while True:
        servers = {server.name: server for server in client.server_info().mcp_servers}
        if name not in servers:
            raise SystemExit(f"The server has no MCP server {name}: start it with the settings of mcp_files.toml.")
        if servers[name].state == "ready":
            return
        if servers[name].state == "failed" or time.monotonic() > until:
            raise SystemExit(f"The MCP server {name} is {servers[name].state}: {servers[name].error}")
        time.sleep(0.1)


def decide(approval: Approval) -> bool:
    """Ask the user whether to run a tool call that may change something."""
    return input(f"{approval.tool} {dict(approval.input)}: run it? [y/N] ").strip().lower() == "y"


def main(directory: str, question: str) -> None:
    """Ask the question, and name the tools that were called."""
    with Client() as client:
        wait_for(client, "files")
        conversation = client.create(working_directory=directory, mode="unrestricted", approval_policy="ask_writes")
        print(conversation.ask(question, on_approval=decide))
        for message in conversation.messages():
            for call in message.tool_calls:
                print(f"called {call.tool}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
