"""The bounds of the contract: what a request may hold and how large an answer gets. GetServerInfo reports them."""

from __future__ import annotations

from actors.ports import images
from actors.runtime.services import AgentLimits

MAX_REQUEST_BYTES = 32 * 1024 * 1024
"""Of a request message; the transport refuses a larger one."""
MAX_RESPONSE_BYTES = 4 * 1024 * 1024
"""Maximum size of a response message: the default limit of gRPC clients."""
PAGE_BYTES = 3 * 1024 * 1024
"""Of the items of a page, if it has more than one."""
ATTACHMENT_PIECE_BYTES = 256 * 1024
"""Of an image that is read, at a time."""
REPLAY_JSON_BYTES = 1024 * 1024
"""Of the input or the state of a step that is run again; longer ones are left out."""
SNAPSHOT_MESSAGES_BYTES = 1024 * 1024
"""Of the recent messages in a snapshot, which also holds the queue and the open questions."""
BATCH_BYTES = 256 * 1024
"""Of a batch of events. Small enough that a watcher on a slow line is seen to make progress."""
BATCH_EVENTS = 256
STORE_PAGE_EVENTS = 256
"""Events that a watcher reads from the store at a time."""

MAX_TEXT_BYTES = 256 * 1024
"""Of a message's text in UTF-8. A full queue of such messages still fits into a snapshot."""
MAX_PATH_BYTES = 4_096
MAX_NAME_CHARS = 512
"""Of a resource name."""
MAX_SLUG_CHARS = 63
MAX_TITLE_CHARS = 256
MAX_NOTE_CHARS = 1_024
MAX_REASON_CHARS = 256
MAX_LABELS = 64
MAX_LABEL_KEY_CHARS = 63
MAX_LABEL_VALUE_CHARS = 256
MAX_TOOL_NAMES = 256
MAX_PAGE_TOKEN_CHARS = 1_024

MAX_IMAGE_BYTES = images.MAX_IMAGE_BYTES
MAX_IMAGE_PIXELS = images.MAX_IMAGE_PIXELS
MAX_IMAGES_PER_MESSAGE = 20

CONVERSATIONS_PAGE = (50, 1_000)
"""Default and greatest page size."""
MESSAGES_PAGE = (100, 1_000)
CYCLES_PAGE = (20, 100)
QUEUE_PAGE = (100, 1_000)
RECENT_MESSAGES = (50, 200)

SUB_AGENTS = AgentLimits()
"""Bounds of what SpawnSubAgents may ask for."""
REPORT_CHARS = 4_096
"""Of what a sub-agent submitted, in an event of its parent."""

HEARTBEAT_SECONDS = 15.0
"""The longest silence on a stream."""
STALL_SECONDS = 60.0
"""How long one batch may wait for a watcher that reads nothing."""
ANSWER_SECONDS = 30.0
"""What a command gets if the client names no deadline."""
