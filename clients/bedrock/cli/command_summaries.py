"""A line about each command, so that `bedrock --help` lists them without importing any."""

from __future__ import annotations

#: The first sentences of the commands' own help texts; a command without one is imported for it.
SUMMARIES = {
    "chat": "Chat with an agent in a directory.",
    "ask": "Ask and print the answer.",
    "new": "Create a conversation and print its slug.",
    "list": "List conversations, the latest first: of all directories, or with --here of the current one.",
    "show": "Show a conversation: its state and settings, and its latest messages.",
    "cycles": "List the runs of a conversation: what was asked, and how each run ended.",
    "watch": "Follow a conversation, or the list of conversations, until Ctrl-C.",
    "models": "List the models that conversations can use.",
    "tools": "List the tools that agents can call.",
    "mcp": "List the MCP servers, whether they work, and their tools.",
    "approve": "Approve a tool call that waits for approval.",
    "deny": "Deny a tool call that waits for approval.",
    "cancel": "Cancel the run of a conversation.",
    "queue": "List the queued messages of a conversation.",
    "withdraw": "Withdraw messages from the queue, and print their texts.",
    "mode": "Set what the tools of a conversation may do, from now on.",
    "compact": "Summarize a conversation now, and continue in a new one that begins with the summary.",
    "fork": "Fork a conversation: create another one with its history up to the end of a run.",
    "continue": "Continue a full conversation in a new one.",
    "rename": "Give a conversation another slug or title.",
    "archive": "Take a conversation off the list; it can still be read.",
    "rm": "Delete a conversation and all that belongs to it.",
    "verify": "Check stored conversations and change nothing.",
    "replay": "Replay a log through the state machine, and compare each step with what was stored.",
    "export": "Print everything about a conversation as lines of JSON.",
    "download": "Save the images of a conversation.",
    "doctor": "Check the server, the connection to it, and this machine.",
    "completion": "Print the completion script of a shell.",
    "serve": "Run the Bedrock server until it receives a signal to stop.",
    "config": "Look at the settings of the server on this machine.",
    "backup": "Copy the database into FILE.",
    "restore": "Make a backup the database of a stopped server.",
}
