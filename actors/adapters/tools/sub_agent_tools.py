"""The tool that starts sub-agents, and the tools with which a sub-agent reports its outcome and ends.

spawn_sub_agent only validates the request: the state machine starts the sub-agents, waits for them and builds the
result. The state machine also handles submit_result and submit_error calls itself, so only the specifications of these
two tools are here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from actors.core.context import Mode, ToolGroup, ToolTraits
from actors.core.states import AgentTask
from actors.ports import SubAgentsRefusedError, ToolContext, ToolOutput, ToolSpec
from actors.ports.tools import object_schema

RESULT_SPEC = ToolSpec(
    description=(
        "Give your final result to the agent that started you, and end. It must be the only call in the response. "
        "With success=false it counts as a failure, with the result as its reason."
    ),
    input_schema={
        "type": "object",
        "required": ["result"],
        "properties": {
            "result": {"type": "string", "description": "Final result to return to parent conversation"},
            "success": {"type": "boolean", "description": "Whether the task completed successfully"},
        },
    },
    traits=ToolTraits("submit_result", ToolGroup.OTHER),
    essential=True,
)

ERROR_SPEC = ToolSpec(
    description=(
        "Tell the agent that started you that the task cannot be done, and end. It must be the only call in the "
        "response."
    ),
    input_schema={
        "type": "object",
        "required": ["error"],
        "properties": {"error": {"type": "string", "description": "Why the task cannot be done, and what you tried."}},
    },
    traits=ToolTraits("submit_error", ToolGroup.OTHER),
    essential=True,
)


MOST = 10
# Maps fields of AgentTask to the tool's arguments where their names differ.
NAMES = {"timeout_ms": "timeout_seconds"}

_TASK = object_schema(
    ["task"],
    task={
        "type": "string",
        "minLength": 1,
        "description": "What to do and what to report. The sub-agent knows nothing about this conversation: name "
        "files, and explain the purpose.",
    },
    cwd={
        "type": "string",
        "minLength": 1,
        "maxLength": 4096,
        "description": "Its working directory; the default is that of this conversation.",
    },
    mode={"type": "string", "description": f'Only "{Mode.RESTRICTED.value}": sub-agents can only read.'},
    model={
        "type": "string",
        "minLength": 1,
        "maxLength": 256,
        "description": "The model it uses; the default is that of this conversation.",
    },
    max_turns={
        "type": "integer",
        "minimum": 1,
        "description": "Maximum number of responses; default 20. One more is allowed for submitting a result.",
    },
    timeout_seconds={"type": "integer", "minimum": 1, "description": "Its time limit in seconds; default 1200."},
    read_first={
        "type": "array",
        "items": {"type": "string", "minLength": 1, "maxLength": 4096},
        "maxItems": 10,
        "description": "Paths of text files that it is given at the start.",
    },
)

SPEC = ToolSpec(
    description=(
        "Start sub-agents, agents that each work on one task at the same time, and wait for all of them. The result "
        "says for each task, in order, what was reported or why it failed. Use it for independent parts that "
        "would fill this conversation with what need not stay in it: searching, reading a lot, comparing. A sub-agent "
        "has the same tools but is always restricted to reading, cannot ask anybody, and cannot start sub-agents. If "
        "one task is invalid, none is started."
    ),
    input_schema=object_schema(
        ["tasks"],
        tasks={
            "type": "array",
            "items": _TASK,
            "minItems": 1,
            "maxItems": MOST,
            "description": "The tasks, each for one sub-agent.",
        },
    ),
    traits=ToolTraits("spawn_sub_agent", ToolGroup.OTHER, retry_safe=True),
)


class SpawnSubAgentTool:
    spec = SPEC

    def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """Check every task and read the given files. Raises ToolTransientError or SandboxUnavailableError."""
        try:
            wanted = tuple(_task(index, task, context) for index, task in enumerate(arguments["tasks"]))
            return ToolOutput("", agents=context.plan_agents(wanted, context))
        except SubAgentsRefusedError as refused:
            return ToolOutput(f"No sub-agent was started. `{refused.place(NAMES)}`: {refused}", is_error=True)


def _task(index: int, task: Mapping[str, Any], context: ToolContext) -> AgentTask:
    if task.get("mode", Mode.RESTRICTED) != Mode.RESTRICTED:
        text = f"sub-agents are always {Mode.RESTRICTED.value}; omit this, and do what needs a wider mode yourself"
        raise SubAgentsRefusedError(index, "mode", text)
    return AgentTask(
        agent_id="",
        task=task["task"],
        cwd=os.path.join(context.working_directory, task["cwd"]) if "cwd" in task else "",
        model=task.get("model", ""),
        max_turns=int(task.get("max_turns", 0)),
        timeout_ms=int(task.get("timeout_seconds", 0)) * 1000,
        read_first=tuple(task.get("read_first", ())),
    )
