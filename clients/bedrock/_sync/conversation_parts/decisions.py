# Generated from clients/bedrock/_async/conversation_parts/decisions.py by `make client-sync`; edit that file.
"""The methods of `Conversation` about what a person decides: approvals, approval rules, and tools' questions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bedrock import v1
from bedrock._shared import requests
from bedrock._sync.conversation_parts.base import ConversationBase
from bedrock.conversations import ConversationInfo
from bedrock.states import Approval, ApprovalRule, Question

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from bedrock.types import RuleAction

__all__ = ["ConversationDecisions"]


class ConversationDecisions(ConversationBase):
    """The methods for answering what the agent asks a person, and for managing approval rules."""

    def approvals(self, *, timeout: float | None = None) -> Iterator[Approval]:
        """Iterate over the open approvals, in the order in which the model asked for the tool calls."""
        request = v1.ListApprovalsRequest(parent=self.name)
        for page in self._transport.pages(self._stub.ListApprovals, request, timeout):
            for approval in page.approvals:
                yield Approval.from_proto(approval)

    def approval(self, name: str, *, timeout: float | None = None) -> Approval:
        """Return an open approval by its resource name or by the id of its tool call.

        Raises:
            NotFound: There is no such approval, or it was answered or withdrawn.
        """
        request = v1.GetApprovalRequest(name=requests.child_name(self.name, "approvals", name))
        response = self._transport.call(self._stub.GetApproval, request, timeout)
        return Approval.from_proto(response.approval)

    def approve(
        self,
        approval: Approval | str,
        *,
        rule: ApprovalRule | None = None,
        note: str = "",
        timeout: float | None = None,
    ) -> ConversationInfo:
        """Approve a tool call, or the change to a wider mode that the agent has asked for.

        Args:
            approval: The approval, its name, or the id of its tool call.
            rule: One of `approval.suggestions`: later calls that match this rule are allowed without asking.
            note: A note for the record.
            timeout: Time limit of this call in seconds; the client's if None.

        Raises:
            NotAwaitingApproval, UnknownOrDecided: The approval was answered or withdrawn already.
        """
        request = requests.resolve(self.name, approval, "approve", note, rule)
        response = self._transport.call(self._stub.ResolveApproval, request, timeout)
        return ConversationInfo.from_proto(response.conversation)

    def deny(
        self,
        approval: Approval | str,
        note: str = "",
        *,
        rule: ApprovalRule | None = None,
        timeout: float | None = None,
    ) -> ConversationInfo:
        """Refuse a tool call, or a requested change to a wider mode; the agent reads the refusal and the note.

        With a rule, one of `approval.suggestions`, later calls that match the rule are denied without asking. Raises
        the same errors as `approve`.
        """
        request = requests.resolve(self.name, approval, "deny", note, rule)
        response = self._transport.call(self._stub.ResolveApproval, request, timeout)
        return ConversationInfo.from_proto(response.conversation)

    def approval_rules(self, *, timeout: float | None = None) -> Iterator[ApprovalRule]:
        """Iterate over the approval rules that apply to this conversation: first the operator's, then its own."""
        request = v1.ListApprovalRulesRequest(parent=self.name)
        for page in self._transport.pages(self._stub.ListApprovalRules, request, timeout):
            for rule in page.approval_rules:
                yield ApprovalRule.from_proto(rule)

    def approval_rule(self, rule: ApprovalRule | str, *, timeout: float | None = None) -> ApprovalRule:
        """Return an approval rule. `rule` is the rule, its name or, for a rule of this conversation, its id.

        Raises NotFound if there is no such rule.
        """
        request = v1.GetApprovalRuleRequest(name=requests.approval_rule_name(self.name, rule))
        response = self._transport.call(self._stub.GetApprovalRule, request, timeout)
        return ApprovalRule.from_proto(response.approval_rule)

    def create_approval_rule(
        self,
        action: RuleAction,
        *,
        tool: str = "",
        command: str = "",
        command_prefix: str = "",
        path: str = "",
        mcp_server: str = "",
        timeout: float | None = None,
    ) -> ApprovalRule:
        """Make a rule about later tool calls and return it. An older rule about the same subject is replaced.

        Args:
            action: "allow" runs matching calls without asking, "ask" asks a person, whatever the approval policy,
                "deny" never runs them and tells the agent why.
            tool: The name of a tool. Give exactly one of `tool`, `command`, `command_prefix`, `path`, `mcp_server`.
            command: An exact shell command.
            command_prefix: The words that shell commands begin with, e.g. "git status".
            path: An absolute directory on the server: calls of tools with a path in or beneath it match.
            mcp_server: The name of an MCP server.
            timeout: Time limit of this call in seconds; the client's if None.

        Raises:
            InvalidArgument: The server does not accept the rule; the error contains the field and the reason.
            ValueError: None, or more than one, of `tool`, `command`, `command_prefix`, `path`, `mcp_server` is given.
        """
        request = requests.create_approval_rule(
            self.name,
            action,
            tool=tool,
            command=command,
            command_prefix=command_prefix,
            path=path,
            mcp_server=mcp_server,
        )
        response = self._transport.call(self._stub.CreateApprovalRule, request, timeout)
        return ApprovalRule.from_proto(response.approval_rule)

    def delete_approval_rule(self, rule: ApprovalRule | str, *, timeout: float | None = None) -> None:
        """Delete an approval rule of this conversation. `rule` is the rule, its name or its id.

        Raises NotFound if there is no such rule.
        """
        request = v1.DeleteApprovalRuleRequest(name=requests.approval_rule_name(self.name, rule))
        self._transport.call(self._stub.DeleteApprovalRule, request, timeout)

    def tool_questions(self, *, timeout: float | None = None) -> Iterator[Question]:
        """Iterate over the open questions of the running tool, oldest first."""
        request = v1.ListQuestionsRequest(parent=self.name)
        for page in self._transport.pages(self._stub.ListQuestions, request, timeout):
            for asked in page.questions:
                yield Question.from_proto(asked)

    def tool_question(self, name: str, *, timeout: float | None = None) -> Question:
        """Return an open question of a tool. `name` is its resource name or its id.

        Raises NotFound if there is no such question, or if it no longer waits for an answer.
        """
        request = v1.GetQuestionRequest(name=requests.child_name(self.name, "questions", name))
        response = self._transport.call(self._stub.GetQuestion, request, timeout)
        return Question.from_proto(response.question)

    def answer_question(
        self,
        question: Question | str,
        content: Mapping[str, Any] | None = None,
        *,
        request_id: str | None = None,
        timeout: float | None = None,
    ) -> Question:
        """Answer a question that a running tool asks a person. Events of kind ``question_changed`` report questions.

        Any client may answer; the first answer counts.

        Args:
            question: The question, its name or its id.
            content: A value for each field of the question's form that is filled in. None if the question is an address
                to visit: the answer then says that the person has visited it.
            request_id: The id to reuse if this call is repeated; generated if None.
            timeout: Time limit of this call in seconds; the client's if None.

        Raises:
            InvalidArgument: The content does not fit the form; the question still waits.
            UnknownOrDecided: The question does not wait for an answer (any more); `metadata["cause"]` says why.
        """
        request = requests.answer_question(self.name, question, content, request_id)
        response = self._transport.call(self._stub.AnswerQuestion, request, timeout)
        return Question.from_proto(response.question)

    def decline_question(
        self, question: Question | str, *, request_id: str | None = None, timeout: float | None = None
    ) -> Question:
        """Refuse to answer a tool's question. The tool decides how its call continues.

        Raises the same errors as `answer_question`.
        """
        request = requests.decline_question(self.name, question, request_id)
        response = self._transport.call(self._stub.AnswerQuestion, request, timeout)
        return Question.from_proto(response.question)
