"""The toolbox: decides which tools a conversation is offered, and validates their arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from actors.adapters.tools import call_subjects
from actors.adapters.tools.bash.job import JobRegistry
from actors.adapters.tools.bash.shell_syntax import new_parser
from actors.adapters.tools.bash.tool import BashTool
from actors.adapters.tools.patch import Clipboards, PatchTool
from actors.adapters.tools.read_file import ReadFileTool, ReadImageTool
from actors.adapters.tools.request_mode_upgrade import ModeUpgradeTool
from actors.adapters.tools.search import KeywordSearchTool, SearchTool
from actors.adapters.tools.sub_agent_tools import ERROR_SPEC, RESULT_SPEC, SpawnSubAgentTool
from actors.common.json_schema import JsonSchema, shortened
from actors.core.content import ToolUse
from actors.core.context import ApprovalRule, CallSubject, Mode, ToolGroup, ToolTraits
from actors.core.tool_run import KillReceipt
from actors.ports import InvalidToolInputError, Tool, ToolContext, ToolOutput, ToolSpec
from actors.ports.tools import input_misfit, object_schema, parse_arguments

THINK = ToolSpec(
    description=(
        "Write down reasoning that you want to keep in the conversation: a plan, what you learned, what to check next. "
        "It has no effect and returns nothing new."
    ),
    input_schema=object_schema(["thoughts"], thoughts={"type": "string", "description": "Your reasoning."}),
    traits=ToolTraits("think", ToolGroup.OTHER, retry_safe=True),
    instant=True,
)


class ThinkTool:
    spec = THINK

    def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        return ToolOutput("Noted.")


PATH_ALIASES = {"file_path": "path", "filename": "path"}

ALIASES = {
    "bash": {"command": "cmd"},
    "read_file": PATH_ALIASES,
    "read_image": PATH_ALIASES,
    "search": {"regex": "pattern", "query": "pattern", "glob": "include"},
    "keyword_search": {"terms": "search_terms", "keywords": "search_terms"},
}
"""For each tool, the wrong argument names that models often use, mapped to the right ones."""


class StandardToolbox:
    """The standard tools (implements ports.Toolbox). Thread-safe."""

    def __init__(self) -> None:
        self._jobs = JobRegistry()
        self._clipboards = Clipboards()
        tools: tuple[Tool, ...] = (
            BashTool(self._jobs),
            ReadFileTool(),
            ReadImageTool(),
            SearchTool(),
            KeywordSearchTool(),
            PatchTool(self._clipboards),
            ThinkTool(),
        )
        not_for_sub_agents: tuple[Tool, ...] = (SpawnSubAgentTool(), ModeUpgradeTool())
        self._tools = {tool.spec.name: tool for tool in (*tools, *not_for_sub_agents)}
        standard = tuple(tool.spec for tool in tools)
        top_level = (*standard, *(tool.spec for tool in not_for_sub_agents))
        self._offered = {False: top_level, True: (*standard, RESULT_SPEC, ERROR_SPEC)}

    @cached_property
    def _schemas(self) -> Mapping[str, JsonSchema]:
        every = {spec.name: spec for specs in self._offered.values() for spec in specs}
        return {name: JsonSchema(spec.input_schema) for name, spec in every.items()}

    def load(self) -> None:
        """Import the parsers for arguments and commands. Blocks.

        Call this before the first tool call. These modules are not imported at the top, which saves 6 MiB in a server
        without agents.
        """
        _ = self._schemas
        new_parser()

    def specs(self, *, sub_agent: bool) -> tuple[ToolSpec, ...]:
        return self._offered[sub_agent]

    def jobs(self, conversation_id: str, wider_than: Mode | None = None) -> tuple[str, ...]:
        return tuple(job.handle for job in self._jobs.running(conversation_id, wider_than) if not job.doomed)

    def end_jobs(
        self, conversation_id: str, ended: Callable[[KillReceipt], None], wider_than: Mode | None = None
    ) -> tuple[str, ...]:
        return self._jobs.end_all(conversation_id, ended, wider_than)

    def forget(self, conversation_id: str) -> None:
        self._jobs.forget(conversation_id)
        self._clipboards.forget(conversation_id)

    def get(self, name: str) -> Tool | None:
        return self._tools.get(name)

    def subject(self, call: ToolUse, working_directory: str, within: Sequence[str] | None = None) -> CallSubject:
        try:
            arguments = self.parse(call.name, call.input)
        except InvalidToolInputError:
            return CallSubject()
        return call_subjects.subject_of(call.name, arguments, working_directory, within)

    def prepared_rule(self, rule: ApprovalRule, within: Sequence[str] | None = None) -> ApprovalRule:
        return call_subjects.prepared_rule(rule, within)

    def parse(self, name: str, raw: str) -> Mapping[str, Any]:
        schema = self._schemas.get(name)
        if schema is None:
            raise InvalidToolInputError(
                f"There is no tool {shortened(repr(name))}. The tools are: {', '.join(self._tools)}."
            )
        arguments = _with_aliases(name, parse_arguments(name, raw))
        if problem := schema.problem(arguments):
            raise InvalidToolInputError(input_misfit(name, problem))
        return arguments


def _with_aliases(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Replace aliases with the real names.

    If the real name is given, too, the alias is kept, so that the schema refuses it.
    """
    aliases = ALIASES.get(name, {})
    renamed: dict[str, Any] = {}
    for argument, value in arguments.items():
        target = aliases.get(argument, argument)
        renamed[argument if target in arguments else target] = value
    return renamed
