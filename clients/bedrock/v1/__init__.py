"""The gRPC contract of Bedrock, version 1: messages, enums, stubs and servicers.

Import the package and use its names::

    from bedrock import v1

    stub = v1.ConversationServiceStub(channel)
    stub.SendMessage(v1.SendMessageRequest(name="conversations/example", text="Hello"))

The values of an enum are found in the enum (``v1.Mode.MODE_RESTRICTED``) and, for enums that are not part of a
message, here as well (``v1.MODE_RESTRICTED``). What each name means is written in ``protos/bedrock/v1``. The modules
that the names come from are generated; import from here and not from them.
"""

# ruff: noqa: F403, I001 -- all names in the contract are public; the import sorter would split each statement

from typing import TYPE_CHECKING

from bedrock.v1.catalog_service_pb2 import *
from bedrock.v1.catalog_service_pb2_grpc import (
    CatalogServiceServicer as CatalogServiceServicer, CatalogServiceStub as CatalogServiceStub,
    add_CatalogServiceServicer_to_server as add_CatalogServiceServicer_to_server,
)  # fmt: skip
from bedrock.v1.common_pb2 import *
from bedrock.v1.conversation_pb2 import *
from bedrock.v1.conversation_service_pb2 import *
from bedrock.v1.conversation_service_pb2_grpc import (
    ConversationServiceServicer as ConversationServiceServicer, ConversationServiceStub as ConversationServiceStub,
    add_ConversationServiceServicer_to_server as add_ConversationServiceServicer_to_server,
)  # fmt: skip
from bedrock.v1.event_pb2 import *

del DESCRIPTOR  # noqa: F821 -- the descriptor of the last module, not of the package

if TYPE_CHECKING:  # the types of stubs on an asyncio channel, which do not exist at run time
    from bedrock.v1.catalog_service_pb2_grpc import CatalogServiceAsyncStub as CatalogServiceAsyncStub
    from bedrock.v1.conversation_service_pb2_grpc import ConversationServiceAsyncStub as ConversationServiceAsyncStub
