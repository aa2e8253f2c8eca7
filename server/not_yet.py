"""Calls that the contract has and this version of the server does not."""

from __future__ import annotations

from typing import Any, NoReturn

from bedrock import v1

from server.status import Unimplemented


class ConversationsNotYet(v1.ConversationServiceServicer):
    """Answers UNIMPLEMENTED."""

    def SpawnSubAgents(self, request: Any, context: Any) -> NoReturn:
        raise Unimplemented("SpawnSubAgents")

    def ListQueue(self, request: Any, context: Any) -> NoReturn:
        raise Unimplemented("ListQueue")

    def WithdrawMessage(self, request: Any, context: Any) -> NoReturn:
        raise Unimplemented("WithdrawMessage")

    def VerifyConversation(self, request: Any, context: Any) -> NoReturn:
        raise Unimplemented("VerifyConversation")

    def ReplayConversation(self, request: Any, context: Any) -> NoReturn:
        raise Unimplemented("ReplayConversation")

    def ExportConversation(self, request: Any, context: Any) -> NoReturn:
        raise Unimplemented("ExportConversation")

    def WatchConversations(self, request: Any, context: Any) -> NoReturn:
        raise Unimplemented("WatchConversations")


class CatalogNotYet(v1.CatalogServiceServicer):
    """Answers UNIMPLEMENTED."""

    def BrowseDirectory(self, request: Any, context: Any) -> NoReturn:
        raise Unimplemented("BrowseDirectory")
