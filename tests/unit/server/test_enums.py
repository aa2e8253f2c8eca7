"""Every value of the core has one in the contract, and every value that may be sent is reached."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

import pytest
from bedrock import v1

from actors.core.content import Delivery, MessageType, SystemKind, ToolOutcome
from actors.core.context import Action, ApprovalPolicy, FollowUpPolicy, Mode, Origin, ToolGroup
from actors.core.errors import ErrorKind
from actors.core.notifications import ApprovalDecision, Fate, StopReason
from actors.core.states import LlmPhase, State
from actors.core.summary import ContextState
from actors.ports.records import Outcome
from server.queries import audit
from server.wire import conversation_messages, enums

if TYPE_CHECKING:
    from enum import EnumMeta

TABLES: list[tuple[Any, Any, EnumMeta, set[str]]] = [
    (enums.CONTEXT_STATE, v1.ContextState, ContextState, {"CONTEXT_STATE_UNSPECIFIED"}),
    (enums.PHASE, v1.ConversationState.LlmRequesting.Phase, LlmPhase, {"PHASE_UNSPECIFIED"}),
    (enums.ERROR_KIND, v1.ErrorKind, ErrorKind, {"ERROR_KIND_UNSPECIFIED"}),
    (enums.STOP_REASON, v1.StopReason, StopReason, {"STOP_REASON_UNSPECIFIED"}),
    (enums.MODE, v1.Mode, Mode, {"MODE_UNSPECIFIED"}),
    (enums.APPROVAL_POLICY, v1.ApprovalPolicy, ApprovalPolicy, {"APPROVAL_POLICY_UNSPECIFIED"}),
    (enums.FOLLOW_UP_POLICY, v1.FollowUpPolicy, FollowUpPolicy, {"FOLLOW_UP_POLICY_UNSPECIFIED"}),
    (enums.ROLE, v1.Role, MessageType, {"ROLE_UNSPECIFIED"}),
    (enums.SYSTEM_KIND, v1.SystemMessageKind, SystemKind, set()),
    (enums.TOOL_OUTCOME, v1.ToolOutcome, ToolOutcome, {"TOOL_OUTCOME_UNSPECIFIED"}),
    (enums.TOOL_GROUP, v1.ToolGroup, ToolGroup, {"TOOL_GROUP_UNSPECIFIED"}),
    (enums.FATE, v1.QueuedMessage.Fate, Fate, {"FATE_UNSPECIFIED"}),
    (enums.DECISION, v1.ApprovalDecision, ApprovalDecision, {"APPROVAL_DECISION_UNSPECIFIED"}),
    (conversation_messages.ACTION, v1.ApprovalRule.Action, Action, {"ACTION_UNSPECIFIED"}),
    (audit.OUTCOME, v1.AuditEntry.Outcome, Outcome, {"OUTCOME_UNSPECIFIED"}),
    (conversation_messages.ORIGIN, v1.ApprovalRule.Origin, Origin, {"ORIGIN_UNSPECIFIED"}),
]


@pytest.mark.parametrize(
    ("table", "wire", "core", "never_sent"), TABLES, ids=lambda value: getattr(value, "__name__", "")
)
def test_a_table_covers_both_sides_and_maps_one_to_one(
    table: dict[Any, int], wire: Any, core: Any, never_sent: set[str]
) -> None:
    assert set(table) == set(core)
    assert {wire.Name(number) for number in table.values()} == set(wire.keys()) - never_sent
    assert len(set(table.values())) == len(table)


@pytest.mark.parametrize(
    ("table", "wire"), [(enums.MODE, v1.Mode), (enums.ROLE, v1.Role), (enums.FATE, v1.QueuedMessage.Fate)]
)
def test_values_are_called_the_same(table: dict[Any, int], wire: Any) -> None:
    assert all(wire.Name(number).endswith(value.name) for value, number in table.items())


def test_every_state_has_its_kind() -> None:
    tags = {kind.__struct_config__.tag for kind in get_args(State)}
    assert set(enums.STATE_KIND) == tags
    assert {v1.StateKind.Name(kind).removeprefix("STATE_KIND_").lower() for kind in enums.STATE_KIND.values()} == tags


def test_deliveries_of_requests_and_of_messages_are_covered() -> None:
    from server.wire.commands import _DELIVERY

    assert set(_DELIVERY) == set(v1.Delivery.values())
    assert set(_DELIVERY.values()) == set(Delivery)
    assert set(enums.DELIVERY.values()) == set(v1.Delivery.values())
