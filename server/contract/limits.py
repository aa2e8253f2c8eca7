"""The limits of the gRPC API: sizes of requests and responses, and times. GetServerInfo reports some of them."""

from __future__ import annotations

from actors.ports import images
from actors.runtime.services import AgentLimits

MAX_REQUEST_BYTES = 32 * 1024 * 1024
"""Maximum size of a request message in bytes. gRPC itself refuses a larger message."""
REQUEST_SECONDS = 120.0
"""Seconds within which a request must arrive: enough for the maximum size at 2.2 Mbit/s."""
MAX_STREAMS_PER_CONNECTION = 256
"""Maximum concurrent calls on one connection. Clients queue further calls until one has ended."""
MAX_RESPONSE_BYTES = 4 * 1024 * 1024
"""Maximum size of a response message in bytes: the default limit of gRPC clients."""
PAGE_BYTES = 3 * 1024 * 1024
"""Maximum size of all items of a page together, in bytes. A single item may be larger."""
ATTACHMENT_PIECE_BYTES = 256 * 1024
"""Size in bytes of the chunks in which an image is downloaded."""
REPLAY_JSON_BYTES = 1024 * 1024
"""Maximum size in bytes of the input, and of the state, of a replayed step. Longer ones are omitted."""
SNAPSHOT_MESSAGES_BYTES = 1024 * 1024
"""Maximum size in bytes of the recent messages in a snapshot, which also contains the queue and the open approvals."""
BATCH_BYTES = 256 * 1024
"""Maximum size in bytes of a batch of events, small enough that a client on a slow connection sees progress."""
BATCH_EVENTS = 256
STORE_PAGE_EVENTS = 256
"""How many events a stream reads from the store at a time."""

MAX_TEXT_BYTES = 256 * 1024
"""Maximum size of a message's text, in bytes of UTF-8. A full queue of such messages still fits into a snapshot."""
MAX_INSTRUCTIONS_BYTES = 64 * 1024
"""Maximum size of the instructions of a conversation, in bytes of UTF-8."""
MAX_TOOL_OUTPUT_BYTES = 256 * 1024
"""Maximum size of a client's answer to a tool call, in bytes of UTF-8."""
MAX_CLIENT_TOOLS = 64
MAX_MCP_SERVERS = 8
MAX_TOOL_DESCRIPTION_CHARS = 4_096
CLIENT_TOOL_SECONDS = (1, 24 * 60 * 60)
"""The shortest and the longest time in seconds that a call of a client tool waits for an answer."""
MAX_TEMPERATURE = 2
MAX_PATH_BYTES = 4_096
MAX_NAME_CHARS = 512
"""Maximum length of a resource name, in characters."""
MAX_SLUG_CHARS = 63
MAX_PRINCIPAL_CHARS = 256
MAX_ETAG_CHARS = 64
MAX_TITLE_CHARS = 256
MAX_NOTE_CHARS = 1_024
MAX_REASON_CHARS = 256
MAX_LABELS = 64
MAX_LABEL_KEY_CHARS = 63
MAX_LABEL_VALUE_CHARS = 256
MAX_TOOL_NAMES = 256
MAX_RULE_CHARS = 4_096
"""Maximum length of the command or path of an approval rule, in characters."""
MAX_PAGE_TOKEN_CHARS = 2_048
"""Maximum length of a page token, in characters. The token of a list that is ordered by title contains a title."""
MAX_FILTER_BYTES = 8_192
"""Maximum size of a filter, in bytes of UTF-8. A path of the maximum length fits into a filter."""
MAX_ORDER_BY_CHARS = 64

MAX_IMAGE_BYTES = images.MAX_IMAGE_BYTES
MAX_IMAGE_PIXELS = images.MAX_IMAGE_PIXELS
MAX_IMAGES_PER_MESSAGE = 20

CONVERSATIONS_PAGE = (50, 1_000)
"""The default and the maximum number of conversations on a page. The constants below are such pairs for other lists."""
MESSAGES_PAGE = (100, 1_000)
CYCLES_PAGE = (20, 100)
QUEUE_PAGE = (100, 1_000)
APPROVALS_PAGE = (100, 1_000)
CATALOG_PAGE = (1_000, 1_000)
"""The default and the maximum page size for models, tools and entries of directories."""
RULES_PAGE = (100, 1_000)
AUDIT_PAGE = (100, 1_000)
RECENT_MESSAGES = (50, 200)

SUB_AGENTS = AgentLimits()
"""Limits of the sub-agents that SpawnSubAgents can request."""
REPORT_CHARS = 4_096
"""How many characters of a sub-agent's result an event of its parent shows."""

HEARTBEAT_SECONDS = 15.0
"""The longest time in seconds without a message on a stream."""
STALL_SECONDS = 60.0
"""How many seconds a batch may wait for a client that does not read.

After that, the server ends the client's stream.
"""
MAX_WAIT_SECONDS = 600.0
"""The longest time in seconds that WaitRequestCycle waits."""
ANSWER_SECONDS = 30.0
"""The time limit of a command in seconds, if the client sets no deadline."""
