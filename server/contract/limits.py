"""The limits of the gRPC API: sizes of requests and responses, counts, and times.

Clients can ask for some of them with the method GetServerInfo.
"""

from __future__ import annotations

from actors.ports import workspace as images
from actors.runtime.services import AgentLimits

MAX_REQUEST_BYTES = 32 * 1024 * 1024
"""Maximum size of a request message in bytes. gRPC itself refuses a larger message."""
REQUEST_SECONDS = 120.0
"""Seconds within which a request must arrive completely. A request of the maximum size needs 2.2 Mbit/s."""
MAX_STREAMS_PER_CONNECTION = 256
"""Maximum concurrent calls on one connection. Clients queue further calls until one has ended."""
MAX_RESPONSE_BYTES = 4 * 1024 * 1024
"""Maximum size of a response message in bytes: the default limit of gRPC clients."""
PAGE_BYTES = 3 * 1024 * 1024
"""The most bytes that all items of one page of a list have together. A single item may be larger."""
ATTACHMENT_PIECE_BYTES = 256 * 1024
"""Size in bytes of the chunks in which an image is downloaded."""
REPLAY_JSON_BYTES = 1024 * 1024
"""Maximum bytes of each JSON text of a transition or a replayed step; a larger one is omitted."""
SNAPSHOT_MESSAGES_BYTES = 1024 * 1024
"""The most bytes that the recent messages in a snapshot have together.

A snapshot, the first message of a stream, also contains the queue and the pending approvals.
"""
BATCH_BYTES = 256 * 1024
"""Maximum size in bytes of a batch of events, small enough that a client on a slow connection sees progress."""
BATCH_EVENTS = 256
STORE_PAGE_EVENTS = 256
"""How many events a stream reads from the store at a time."""

MAX_TEXT_BYTES = 256 * 1024
"""The most bytes of UTF-8 in a message's text. A full queue of such messages still fits into a snapshot."""
MAX_TOOL_OUTPUT_BYTES = 256 * 1024
"""The most bytes of UTF-8 in the output with which a client answers a tool call."""
MAX_NAME_CHARS = 512
"""Maximum length of a resource name, in characters."""
MAX_REASON_CHARS = 256

MAX_IMAGE_BYTES = images.MAX_IMAGE_BYTES
MAX_IMAGE_PIXELS = images.MAX_IMAGE_PIXELS
MAX_IMAGES_PER_MESSAGE = 20

CONVERSATIONS_PAGE = (50, 1_000)
"""The default and the maximum number of conversations on a page.

The other constants whose names end with _PAGE are pairs like this one, for other lists.
"""
MESSAGES_PAGE = QUEUE_PAGE = APPROVALS_PAGE = RULES_PAGE = AUDIT_PAGE = TRANSITIONS_PAGE = (100, 1_000)
CYCLES_PAGE = (20, 100)
CATALOG_PAGE = (1_000, 1_000)
"""The default and the maximum number of models, tools or directory entries on a page."""
RECENT_MESSAGES = (50, 200)

SUB_AGENTS = AgentLimits()
"""Limits of the sub-agents that SpawnSubAgents can request."""
REPORT_CHARS = 4_096
"""How many characters of a sub-agent's result are shown in an event of the conversation that started the sub-agent."""

HEARTBEAT_SECONDS = 15.0
"""The longest time in seconds without a message on a stream: the server then sends a heartbeat."""
STALL_SECONDS = 60.0
"""How many seconds the server waits for a client to read a batch of events, before it ends the client's stream."""
MAX_WAIT_SECONDS = 600.0
"""The longest time in seconds that WaitRequestCycle waits."""
ANSWER_SECONDS = 30.0
"""The time limit in seconds for the server's answer to a command, if the client sets no deadline."""
