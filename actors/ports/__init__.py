"""Ports: the interfaces through which the actors use the outside world, such as the store, models, tools and clocks.

Adapters implement the ports; `server.app` selects the adapters.

A port documents the thread on which it is called and the exceptions that it raises. Each call that may block takes a
CancelToken or has a time limit. Nothing here depends on gRPC, SQL or HTTP.
"""

from __future__ import annotations

from actors.ports.live_conversations import CancelToken as CancelToken
from actors.ports.live_conversations import Clock as Clock
from actors.ports.live_conversations import ConversationDirectory as ConversationDirectory
from actors.ports.live_conversations import EventBus as EventBus
from actors.ports.live_conversations import FaultPoints as FaultPoints
from actors.ports.live_conversations import Ids as Ids
from actors.ports.live_conversations import LiveConversation as LiveConversation
from actors.ports.live_conversations import NoFaultPoints as NoFaultPoints
from actors.ports.models import MAX_MODEL_RESPONSE_BYTES as MAX_MODEL_RESPONSE_BYTES
from actors.ports.models import Model as Model
from actors.ports.models import ModelAbortedError as ModelAbortedError
from actors.ports.models import ModelAnswer as ModelAnswer
from actors.ports.models import ModelCatalog as ModelCatalog
from actors.ports.models import ModelFailedError as ModelFailedError
from actors.ports.models import ModelInfo as ModelInfo
from actors.ports.models import ModelRequest as ModelRequest
from actors.ports.models import ModelSink as ModelSink
from actors.ports.models import Purpose as Purpose
from actors.ports.models import SideQuery as SideQuery
from actors.ports.models import SideQueryError as SideQueryError
from actors.ports.models import ToolSpec as ToolSpec
from actors.ports.records import Attachment as Attachment
from actors.ports.records import CommandRecord as CommandRecord
from actors.ports.records import Commit as Commit
from actors.ports.records import ConversationRecord as ConversationRecord
from actors.ports.records import ForkedHistory as ForkedHistory
from actors.ports.records import LogEntry as LogEntry
from actors.ports.records import SettledInput as SettledInput
from actors.ports.records import Snapshot as Snapshot
from actors.ports.records import Spending as Spending
from actors.ports.records import StoppedRun as StoppedRun
from actors.ports.records import StoredEvent as StoredEvent
from actors.ports.records import StoredTransition as StoredTransition
from actors.ports.records import date_of as date_of
from actors.ports.records import day_of as day_of
from actors.ports.records import etag_of as etag_of
from actors.ports.records import live_run as live_run
from actors.ports.sandbox import Launch as Launch
from actors.ports.sandbox import ProcessEnd as ProcessEnd
from actors.ports.sandbox import ProcessLimits as ProcessLimits
from actors.ports.sandbox import ProcessStartError as ProcessStartError
from actors.ports.sandbox import RunningProcess as RunningProcess
from actors.ports.sandbox import Sandbox as Sandbox
from actors.ports.sandbox import SandboxReport as SandboxReport
from actors.ports.sandbox import SandboxUnavailableError as SandboxUnavailableError
from actors.ports.sandbox import ServiceStreams as ServiceStreams
from actors.ports.store import AttachmentStore as AttachmentStore
from actors.ports.store import CommandExistsError as CommandExistsError
from actors.ports.store import ConversationOwnership as ConversationOwnership
from actors.ports.store import ConversationReader as ConversationReader
from actors.ports.store import ConversationWriter as ConversationWriter
from actors.ports.store import DatabaseAwayError as DatabaseAwayError
from actors.ports.store import DataDirectoryBusyError as DataDirectoryBusyError
from actors.ports.store import FencedError as FencedError
from actors.ports.store import LogReader as LogReader
from actors.ports.store import NotOwnerError as NotOwnerError
from actors.ports.store import Owner as Owner
from actors.ports.store import RevisionTooOldError as RevisionTooOldError
from actors.ports.store import SlugTakenError as SlugTakenError
from actors.ports.store import Store as Store
from actors.ports.store import StoreDamagedError as StoreDamagedError
from actors.ports.store import StoreError as StoreError
from actors.ports.store import StoreMaintenance as StoreMaintenance
from actors.ports.store import StoreReader as StoreReader
from actors.ports.store import StoreUnavailableError as StoreUnavailableError
from actors.ports.store import StoreUnusableError as StoreUnusableError
from actors.ports.tools import InvalidApprovalRuleError as InvalidApprovalRuleError
from actors.ports.tools import InvalidToolInputError as InvalidToolInputError
from actors.ports.tools import PersonAnswer as PersonAnswer
from actors.ports.tools import PersonQuestion as PersonQuestion
from actors.ports.tools import SubAgentsRefusedError as SubAgentsRefusedError
from actors.ports.tools import Tool as Tool
from actors.ports.tools import Toolbox as Toolbox
from actors.ports.tools import ToolContext as ToolContext
from actors.ports.tools import ToolOutput as ToolOutput
from actors.ports.tools import ToolTransientError as ToolTransientError
from actors.ports.tools import TooManyQuestionsError as TooManyQuestionsError
from actors.ports.tools import decline_question as decline_question
from actors.ports.tools import no_sub_agents as no_sub_agents
from actors.ports.tools import parse_arguments as parse_arguments
from actors.ports.workspace import DirectoryEntry as DirectoryEntry
from actors.ports.workspace import DirectoryListing as DirectoryListing
from actors.ports.workspace import GitState as GitState
from actors.ports.workspace import Images as Images
from actors.ports.workspace import ImagesUnavailableError as ImagesUnavailableError
from actors.ports.workspace import ImageView as ImageView
from actors.ports.workspace import Instructions as Instructions
from actors.ports.workspace import InvalidImageError as InvalidImageError
from actors.ports.workspace import NoImages as NoImages
from actors.ports.workspace import Workspace as Workspace
from actors.ports.workspace import WorkspaceContext as WorkspaceContext
