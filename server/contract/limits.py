"""The limits of the gRPC API: sizes of requests and responses, counts, and times.

Clients can ask for some of them with the method GetServerInfo.
"""

from __future__ import annotations

from actors.ports import workspace as images
from actors.runtime.services import AgentLimits

# Maximum size of a request message in bytes. gRPC itself refuses a larger message.
MAX_REQUEST_BYTES = 32 * 1024 * 1024
REQUEST_SECONDS = 120.0
MAX_STREAMS_PER_CONNECTION = 256
MAX_RESPONSE_BYTES = 4 * 1024 * 1024
# Maximum total bytes of the items on one page of a list. A single item may be larger.
PAGE_BYTES = 3 * 1024 * 1024
ATTACHMENT_PIECE_BYTES = 256 * 1024
# Maximum bytes of each JSON string in a transition or a replayed step; a larger one is omitted.
REPLAY_JSON_BYTES = 1024 * 1024
# Maximum total bytes of the messages in a snapshot, which also contains the queue and the pending approvals.
SNAPSHOT_MESSAGES_BYTES = 1024 * 1024
# Maximum size in bytes of a batch of events, small enough that a client on a slow connection sees progress.
BATCH_BYTES = 256 * 1024
BATCH_EVENTS = 256
STORE_PAGE_EVENTS = 256

# Maximum bytes of UTF-8 in a message's text. A full queue of such messages still fits into a snapshot.
MAX_TEXT_BYTES = 256 * 1024
# Maximum bytes of UTF-8 in the output with which a client answers a tool call.
MAX_TOOL_OUTPUT_BYTES = 256 * 1024
MAX_NAME_CHARS = 512
MAX_REASON_CHARS = 256

MAX_IMAGE_BYTES = images.MAX_IMAGE_BYTES
MAX_IMAGE_PIXELS = images.MAX_IMAGE_PIXELS
MAX_IMAGES_PER_MESSAGE = 20

# The default and the maximum number of items on a page, as in all pairs below.
CONVERSATIONS_PAGE = (50, 1_000)
MESSAGES_PAGE = QUEUE_PAGE = APPROVALS_PAGE = RULES_PAGE = AUDIT_PAGE = TRANSITIONS_PAGE = (100, 1_000)
CYCLES_PAGE = (20, 100)
CATALOG_PAGE = (1_000, 1_000)
RECENT_MESSAGES = (50, 200)

SUB_AGENTS = AgentLimits()
# How many characters of a sub-agent's result are shown in an event of the conversation that started the sub-agent.
REPORT_CHARS = 4_096

HEARTBEAT_SECONDS = 15.0
STALL_SECONDS = 60.0
MAX_WAIT_SECONDS = 600.0
ANSWER_SECONDS = 30.0
