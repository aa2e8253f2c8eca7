"""Dispatches the commands of a conversation to their handlers, and returns their answers."""

from __future__ import annotations

import msgspec

from actors import messages
from actors.common import json_schema as output_schema
from actors.common.json_schema import InvalidSchemaError
from actors.conversation import command_results, creation, settings
from actors.conversation.command_results import checked_form, command_record, known_command, late_answer
from actors.conversation.pipeline import ConversationPipeline, LoadedConversation
from actors.core import events
from actors.core.content import Delivery
from actors.core.context import ApprovalRule, Mode
from actors.core.errors import Reason, Rejected
from actors.core.notifications import QuestionChanged, QueueChanged
from actors.core.rules.tool_states import open_question
from actors.core.states import INACTIVE
from actors.core.steps.approvals import traits_of
from actors.core.steps.tool_rounds import current_call, waiting_call
from actors.ports import ConversationRecord, StoreUnavailableError, live_run
from actors.ports.records import AuditEntry, CommandOrigin, Outcome, etag_of
from actors.runners.side_queries import Titles, title_of
from actors.runtime.offered_tools import check_generation
from actors.runtime.services import check_images, check_mode, served_model

# Decoders of stored results, which are returned again if a command is repeated.
_SENT = msgspec.json.Decoder(messages.SendMessageResult)
_ANSWERED = msgspec.json.Decoder(QuestionChanged)
_SUBMITTED = msgspec.json.Decoder(messages.SubmitToolResultResult)
_SPAWNED = msgspec.json.Decoder(messages.SpawnSubAgentsResult)
_CREATED = msgspec.json.Decoder(ApprovalRule)


class CommandDispatch:
    """Handles the commands of one conversation. Call only on the actor's thread.

    Methods raise StoreError, Rejected or an error from actors.messages; after the latter two, nothing has changed.
    """

    def __init__(self, pipeline: ConversationPipeline, titles: Titles) -> None:
        self._pipeline = pipeline
        self._titles = titles
        self._services = pipeline.services
        self._builder = pipeline.executor.builder

    def carry_out(
        self, request: messages.CreatingCommand | messages.CreateSubAgent | messages.Wake | messages.ConversationCommand
    ) -> object:
        """Carry out a command and return its answer; None for Wake.

        For Delete, return only the cancel that could not be stored, or None; the deletion itself follows later.
        """
        match request:
            case messages.Wake():
                self._pipeline.load()
                return None
            case messages.CreateConversationCommand() | messages.ForkConversationCommand():
                return creation.create(self._pipeline, request)
            case messages.CreateSubAgent():
                return creation.create_sub_agent(self._pipeline, request)
            case _:
                return self._apply(self._pipeline.loaded or self._pipeline.load(), request)

    def _apply(self, loaded: LoadedConversation, request: messages.ConversationCommand) -> object:
        match request:
            case messages.SendMessageCommand():
                return self._send_message(loaded, request)
            case messages.CancelConversationCommand():
                return self.cancel_conversation(request, cancel_event(request, self._pipeline.now()))
            case messages.ResolveApprovalCommand():
                return self._resolve_approval(loaded, request)
            case messages.SubmitToolResultCommand():
                return self._submit_tool_result(loaded, request)
            case messages.AnswerQuestionCommand():
                return self._answer_question(loaded, request)
            case messages.SetModeCommand():
                return self._set_mode(loaded, request)
            case messages.TriggerContinuationCommand():
                return self._trigger_continuation(loaded)
            case messages.ContinueConversationCommand():
                return creation.continue_exhausted(self._pipeline, loaded, request)
            case messages.WithdrawMessageCommand(message_id=message_id):
                return self._withdraw_message(message_id)
            case messages.SpawnSubAgentsCommand():
                return self._spawn_sub_agents(loaded, request)
            case messages.DeleteConversationCommand(force=force, archived_before=before, etag=etag):
                _check_archived(loaded, before)
                _check_etag(loaded, etag)
                return self._stop(force)
            case messages.UpdateConversationCommand():
                return self._update_conversation(loaded, request)
            case messages.SetGeneratedTitleCommand():
                return self._set_generated_title(loaded, request)
            case messages.ArchiveConversationCommand(archived=archived):
                return self._archive_conversation(loaded, archived)
            case messages.CreateApprovalRuleCommand():
                return self._create_approval_rule(loaded, request)
            case messages.DeleteApprovalRuleCommand():
                self._delete_approval_rule(loaded, request)
                return None

    def delete(self, origin: CommandOrigin | None) -> None:
        """Delete the idle conversation and its tools' state. If this raises StoreError, nothing was deleted.

        `origin` (who asked for the deletion) is stored outside the log, because the log is deleted, too.
        """
        conversation_id, services = self._pipeline.conversation_id, self._services
        children = services.store.children(conversation_id)
        services.faults.hit("delete.before")
        audit = None
        if origin is not None:
            audit = AuditEntry(self._pipeline.now(), Outcome.ACCEPTED, origin, conversation=conversation_id)
        services.store.delete(conversation_id, audit)
        last = self._pipeline.loaded.record if self._pipeline.loaded else None
        services.quotas.deleted(conversation_id, last.principal if last else "")
        self._pipeline.loaded, self._pipeline.deleted = None, last
        services.faults.hit("delete.after")
        for deleted in (conversation_id, *children):
            services.bus.deleted(deleted, last)
            services.telemetry.deleted(deleted)
            services.toolbox.forget(deleted)
            services.mcp.stop(deleted)

    def _send_message(
        self, loaded: LoadedConversation, request: messages.SendMessageCommand
    ) -> messages.SendMessageResult:
        services = self._services
        known = known_command(services.store, self._pipeline.conversation_id, request)
        if known is not None:
            return msgspec.structs.replace(_SENT.decode(known.answer), duplicate=True)
        _refuse_archived(loaded)
        if generation := request.options.generation:
            check_generation(generation, served_model(services, loaded.record.model).info)
        if request.images:
            check_images(services, loaded.record.model)
        _check_output_schema(request.options.output_schema)
        # The quota of stored bytes is checked for each message, because messages can prolong a single run indefinitely.
        if services.quotas.limits_stored:
            services.quotas.check_stored(loaded.record.principal)
        event = events.UserMessage(
            delivery=_delivery(request.delivery),
            at=self._pipeline.now(),
            message_id=services.ids.message(),
            text=request.text,
            images=request.images,
            expected_run=request.expected_run,
            **msgspec.structs.asdict(request.options),
        )
        self._builder.read_history(loaded.record)
        # Outdated MCP servers are ended only once the message is accepted: a refused one must change nothing.
        outdated = services.mcp.outdated(loaded.record) if isinstance(loaded.state, INACTIVE) else ()
        unit = loaded.begin()
        if outdated:
            unit.run(events.McpRestarted(event.at, outdated))
        unit.run(event)
        answer = command_results.send_result(unit, event.message_id)
        before = loaded.record
        untitled = before.user_initiated and not before.title and not before.state.ledger.run
        if (entitled := untitled and self._titles.wanted) and (title := title_of(request.text)):
            settings.change(unit, event.at, title=title)
        self._pipeline.perform(loaded, unit, command=command_record(request, msgspec.json.encode(answer), event.at))
        if outdated:
            services.mcp.end_outdated(loaded.record)
        if entitled:
            self._titles.improve(loaded.record, request.text)
        return answer

    def _trigger_continuation(self, loaded: LoadedConversation) -> ConversationRecord:
        _refuse_archived(loaded)
        self._builder.read_history(loaded.record)
        self._pipeline.advance(events.TriggerContinuation(self._pipeline.now()))
        return loaded.record

    def _answer_question(self, loaded: LoadedConversation, request: messages.AnswerQuestionCommand) -> QuestionChanged:
        known = known_command(self._services.store, self._pipeline.conversation_id, request)
        if known is not None:
            return _ANSWERED.decode(known.answer)
        question = open_question(loaded.record.state, request.number)
        content = checked_form(question, request) if question is not None else ""
        unit, at = loaded.begin(), self._pipeline.now()
        unit.run(events.AnswerQuestion(at, request.number, request.accept, content))
        (answer,) = unit.find(QuestionChanged)
        self._pipeline.perform(loaded, unit, command=command_record(request, msgspec.json.encode(answer), at))
        return answer

    def _submit_tool_result(
        self, loaded: LoadedConversation, request: messages.SubmitToolResultCommand
    ) -> messages.SubmitToolResultResult:
        known = known_command(self._services.store, self._pipeline.conversation_id, request)
        if known is not None:
            return msgspec.structs.replace(_SUBMITTED.decode(known.answer), duplicate=True)
        event = events.SubmitToolResult(self._pipeline.now(), request.tool_use_id, request.result)
        unit = loaded.begin()
        try:
            unit.run(event)
        except Rejected:
            return late_answer(self._builder.history_of(loaded.record).through(loaded.record.state.ledger.seq), request)
        answer = command_results.tool_result_result(unit, request.tool_use_id)
        self._pipeline.perform(loaded, unit, command=command_record(request, msgspec.json.encode(answer), event.at))
        return answer

    def _spawn_sub_agents(
        self, loaded: LoadedConversation, request: messages.SpawnSubAgentsCommand
    ) -> messages.SpawnSubAgentsResult:
        known = known_command(self._services.store, self._pipeline.conversation_id, request)
        if known is not None:
            return _SPAWNED.decode(known.answer)
        _refuse_archived(loaded)
        self._builder.read_history(loaded.record)
        at = self._pipeline.now()
        unit, answer = creation.spawn_from_command(self._pipeline, loaded, request, at)
        self._pipeline.perform(loaded, unit, command=command_record(request, msgspec.json.encode(answer), at))
        return answer

    def cancel_conversation(
        self, request: messages.CancelConversationCommand, event: events.UserCancel
    ) -> messages.CancelConversationResult:
        """Cancel the open run.

        Jobs are killed first, which needs no store. If the cancel cannot be stored, the work is stopped nevertheless,
        and the result says so. Raises StoreUnavailableError if the conversation cannot be loaded.
        """
        loaded = self._pipeline.load()
        ended: tuple[str, ...] = ()
        if request.kill_jobs and request.run_id in ("", live_run(loaded.record)):
            ended = self._pipeline.executor.end_jobs(loaded.record.id)
        unit = loaded.begin()
        unit.run(event)
        try:
            self._pipeline.perform(loaded, unit, urgent=True)
            recorded = True
        except StoreUnavailableError:
            self._pipeline.executor.stop_unrecorded(unit.effects, unit.record, unit.context)
            recorded = False
        surviving = tuple(job for job in self._jobs() if job not in ended)
        return command_results.cancel_result(unit, ended=ended, surviving=surviving, recorded=recorded)

    def _withdraw_message(self, message_id: str) -> messages.WithdrawMessageResult:
        event = events.WithdrawMessage(self._pipeline.now(), message_id)
        (withdrawn,) = self._pipeline.advance(event).find(QueueChanged)
        return messages.WithdrawMessageResult(withdrawn, event.at)

    def _set_mode(self, loaded: LoadedConversation, request: messages.SetModeCommand) -> messages.SetModeResult:
        self._builder.read_history(loaded.record)
        rights, mode = self._pipeline.executor.rights, request.mode
        if mode is not loaded.context.mode and not loaded.context.is_sub_agent:
            check_mode(self._services, mode, loaded.record.cwd, loaded.record.principal)
        rights.narrow(mode)
        stopped = (*rights.wider_than(mode), *_client_call_beyond(loaded, mode)) if request.stop_running else ()
        try:
            self._pipeline.advance(events.SetMode(self._pipeline.now(), mode, stopped))
        finally:
            rights.mode = loaded.context.mode
        rights.cancel(stopped)
        mcp, conversation_id = self._services.mcp, loaded.record.id
        stopped_servers = mcp.stop(conversation_id, wider_than=mode) if request.stop_running else ()
        # Calls are listed before jobs, so that a call which becomes a background job in between is in at least one
        # list.
        calls = rights.wider_than(mode)
        ended = self._pipeline.executor.end_jobs(conversation_id, mode) if request.stop_running else ()
        jobs = tuple(job for job in self._services.toolbox.jobs(conversation_id, mode) if job not in ended)
        servers = mcp.wider_than(conversation_id, mode)
        return messages.SetModeResult(loaded.record, jobs, calls, ended, stopped, servers, stopped_servers)

    def _resolve_approval(
        self, loaded: LoadedConversation, request: messages.ResolveApprovalCommand
    ) -> ConversationRecord:
        unit = loaded.begin()
        event = events.ApprovalResponse(self._pipeline.now(), request.tool_use_id, request.approve, request.note)
        if request.rule is not None:
            settings.create_rule_with_answer(
                self._services, unit, request.rule, request.principal, event.at, approve=request.approve
            )
        unit.run(event)
        self._pipeline.perform(loaded, unit)
        return loaded.record

    def _create_approval_rule(
        self, loaded: LoadedConversation, request: messages.CreateApprovalRuleCommand
    ) -> ApprovalRule:
        known = known_command(self._services.store, self._pipeline.conversation_id, request)
        if known is not None:
            return _CREATED.decode(known.answer)
        settings.check_rule_tool(self._services, loaded.record, request.rule.tool)
        unit, at = loaded.begin(), self._pipeline.now()
        rule = settings.create_rule(self._services, unit, request.rule, request.principal, at)
        self._pipeline.perform(loaded, unit, command=command_record(request, msgspec.json.encode(rule), at))
        return rule

    def _delete_approval_rule(self, loaded: LoadedConversation, request: messages.DeleteApprovalRuleCommand) -> None:
        unit = loaded.begin()
        settings.delete_rule(self._services, unit, request.rule_id, request.principal, self._pipeline.now())
        self._pipeline.perform(loaded, unit)

    def _update_conversation(
        self, loaded: LoadedConversation, request: messages.UpdateConversationCommand
    ) -> ConversationRecord:
        _check_etag(loaded, request.etag)
        self._builder.read_history(loaded.record)
        unit = loaded.begin()
        settings.update(self._services, unit, request, self._pipeline.now())
        self._pipeline.perform(loaded, unit)
        if request.mcp_servers is not None:
            self._services.mcp.prepare(loaded.record)
        return loaded.record

    def _set_generated_title(
        self, loaded: LoadedConversation, request: messages.SetGeneratedTitleCommand
    ) -> ConversationRecord:
        unit, at = loaded.begin(), self._pipeline.now()
        if request.usage is not None:
            unit.run(events.UsageReported(at, request.usage, aside=True))
        if request.title and unit.record.title == request.instead_of:
            settings.change(unit, at, title=request.title)
        self._pipeline.perform(loaded, unit)
        return loaded.record

    def _archive_conversation(self, loaded: LoadedConversation, archived: bool) -> ConversationRecord:
        if archived and not self._pipeline.idle:
            raise Rejected(Reason.AGENT_BUSY, "agent is busy: cancel it first, then archive the conversation")
        if archived != (loaded.record.archived_at is not None):
            unit = loaded.begin()
            settings.archive(unit, archived, self._pipeline.now())
            self._pipeline.perform(loaded, unit)
        if archived:
            self._pipeline.executor.end_jobs(loaded.record.id)
            self._services.mcp.stop(loaded.record.id)
        return loaded.record

    def _stop(self, force: bool) -> events.UserCancel | None:
        """Stop all work before a deletion; return the cancel if it could not be stored, else None.

        Without `force`, raises Rejected if the conversation is busy.
        """
        unstored = None
        if not self._pipeline.idle:
            if not force:
                raise Rejected(
                    Reason.AGENT_BUSY, "agent is busy: cancel it first, or delete the conversation with force"
                )
            cancel = events.UserCancel(self._pipeline.now(), discard_queued=True, kill_jobs=True, reason="deleted")
            try:
                self._pipeline.advance(cancel)
            except StoreUnavailableError:
                unstored = cancel
        self.stop_everything()
        return unstored

    def stop_everything(self) -> None:
        """Stop everything that runs for the conversation: tools, jobs, MCP servers, and model requests."""
        self._titles.stop(self._pipeline.conversation_id)
        self._services.mcp.stop(self._pipeline.conversation_id)
        self._pipeline.executor.stop_everything()
        self._pipeline.executor.end_jobs(self._pipeline.conversation_id)

    def _jobs(self) -> tuple[str, ...]:
        return self._services.toolbox.jobs(self._pipeline.conversation_id)


def cancel_event(request: messages.CancelConversationCommand, at: int) -> events.UserCancel:
    return events.UserCancel(
        at,
        run_id=request.run_id,
        discard_queued=request.discard_queued,
        kill_jobs=request.kill_jobs,
        reason=request.reason,
    )


def _client_call_beyond(loaded: LoadedConversation, mode: Mode) -> tuple[str, ...]:
    """The id of the call that a client is running, if this mode would not allow the call; otherwise ()."""
    waiting = waiting_call(loaded.state)
    if waiting is None or mode is not Mode.RESTRICTED:
        return ()
    traits = traits_of(loaded.context, current_call(waiting).name)
    return (waiting.current_tool_id,) if traits is None or traits.writes else ()


def _delivery(name: str) -> Delivery:
    try:
        return Delivery(name)
    except ValueError:
        raise messages.InvalidFieldError("delivery", f"must be one of {', '.join(Delivery)}") from None


def _check_output_schema(schema: str) -> None:
    if len(schema.encode()) > output_schema.MAX_SCHEMA_BYTES:
        raise messages.InvalidFieldError(
            "output_schema", f"must be at most {output_schema.MAX_SCHEMA_BYTES} bytes of JSON"
        )
    try:
        if schema:
            output_schema.compiled(schema)
    except InvalidSchemaError as error:
        raise messages.InvalidFieldError("output_schema", str(error)) from None


def _refuse_archived(loaded: LoadedConversation) -> None:
    if loaded.record.archived_at is not None:
        raise Rejected(Reason.ARCHIVED)


def _check_etag(loaded: LoadedConversation, etag: str) -> None:
    if etag and etag != etag_of(loaded.record):
        raise messages.EtagMismatchError("the conversation has changed since it was read: read it again")


def _check_archived(loaded: LoadedConversation, before: int | None) -> None:
    """Raise EtagMismatchError if `before` (ms) is set and the conversation was not archived before that time."""
    at = loaded.record.archived_at
    if before is not None and (at is None or at >= before):
        raise messages.EtagMismatchError
