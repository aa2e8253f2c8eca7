"""What the actors need from the outside, named by role. Adapters implement these; `server.app` picks them.

A port says on which thread it is called and what it raises. Every call that may block takes a CancelToken or is
bounded; nothing here knows gRPC, SQL or HTTP.
"""

from __future__ import annotations

from actors.ports.cancellation import CancelToken
from actors.ports.clock import Clock, Faults, Ids, NoFaults
from actors.ports.images import ImageInvalid, Images, ImagesUnavailable, ImageView, NoImages
from actors.ports.models import (
    Model,
    ModelAborted,
    ModelAnswer,
    ModelCatalog,
    ModelFailed,
    ModelInfo,
    ModelRequest,
    ModelSink,
    ToolSpec,
)
from actors.ports.processes import (
    Launch,
    ProcessEnd,
    ProcessLimits,
    ProcessStartFailed,
    RunningProcess,
    Sandbox,
    SandboxReport,
    SandboxUnavailable,
)
from actors.ports.records import (
    Attachment,
    CommandRecord,
    Commit,
    ConversationRecord,
    JournalRow,
    LogEntry,
    Snapshot,
    StoredEvent,
)
from actors.ports.store import (
    CommandExists,
    DataDirectoryBusy,
    Fenced,
    RevisionTooOld,
    SlugTaken,
    Store,
    StoreDamaged,
    StoreError,
    StoreUnavailable,
    StoreUnusable,
)
from actors.ports.surroundings import EventBus, GitState, Instructions, Surroundings, Workspace
from actors.ports.tools import Tool, Toolbox, ToolContext, ToolInputInvalid, ToolOutput, ToolTransientError

__all__ = [
    "Attachment",
    "CancelToken",
    "Clock",
    "CommandExists",
    "CommandRecord",
    "Commit",
    "ConversationRecord",
    "DataDirectoryBusy",
    "EventBus",
    "Faults",
    "Fenced",
    "GitState",
    "Ids",
    "ImageInvalid",
    "ImageView",
    "Images",
    "ImagesUnavailable",
    "Instructions",
    "JournalRow",
    "Launch",
    "LogEntry",
    "Model",
    "ModelAborted",
    "ModelAnswer",
    "ModelCatalog",
    "ModelFailed",
    "ModelInfo",
    "ModelRequest",
    "ModelSink",
    "NoFaults",
    "NoImages",
    "ProcessEnd",
    "ProcessLimits",
    "ProcessStartFailed",
    "RevisionTooOld",
    "RunningProcess",
    "Sandbox",
    "SandboxReport",
    "SandboxUnavailable",
    "SlugTaken",
    "Snapshot",
    "Store",
    "StoreDamaged",
    "StoreError",
    "StoreUnavailable",
    "StoreUnusable",
    "StoredEvent",
    "Surroundings",
    "Tool",
    "ToolContext",
    "ToolInputInvalid",
    "ToolOutput",
    "ToolSpec",
    "ToolTransientError",
    "Toolbox",
    "Workspace",
]
