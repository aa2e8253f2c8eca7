"""The Request Cycle Model folded from the events of a stream, written again for the tests from its rules alone.

P1 to P9 make cycles, S-a to S-f the product view; a round is one request to the model. It knows
nothing of the server's own projector: what both make of the same events must be equal.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from bedrock import v1


@dataclass
class Cycle:
    """One request and all that was done for it, as plain values."""

    root: str
    """Name of the message; as everywhere here."""
    follow_up: bool
    items: list[tuple[str, ...]] = field(default_factory=list)
    run: str = ""
    stop: int = v1.STOP_REASON_UNSPECIFIED
    detail: str = ""

    def steps(self) -> list[Any]:
        """Messages, and blocks of one text with the groups of calls that belong to it."""
        done: list[Any] = [("root", self.root)]
        for kind, *rest in self.items:
            match kind:
                case "steer":
                    done.append(("steer", rest[0]))
                case "assistant" | "reasoning":
                    done.append((kind, rest[2], False, []))
                case "call":
                    if done[-1][0] not in ("assistant", "reasoning"):
                        done.append(("assistant", "", True, []))
                    groups = done[-1][3]
                    if not groups or groups[-1][0] != rest[3]:
                        groups.append((rest[3], []))
                    groups[-1][1].append(rest[2])
                case _:
                    pass  # results make no step
        return done

    def rounds(self) -> list[tuple[str, list[str], str, list[str]]]:
        """Requests, the messages that went in since the one before, the message that came out and its calls."""
        done: list[tuple[str, list[str], str, list[str]]] = []
        inputs = [self.root]
        for kind, *rest in self.items:
            if kind in ("steer", "result"):
                inputs.append(rest[0])
            elif not done or done[-1][0] != rest[0]:
                done.append((rest[0], list(dict.fromkeys(inputs)), rest[1], []))
                inputs = []
            if kind == "call":
                done[-1][3].append(rest[2])
        return done


def fold(events: Iterable[v1.Event]) -> list[Cycle]:
    """Cycles from durable events in order."""
    closed: list[Cycle] = []
    running: Cycle | None = None
    queue: list[str] = []
    accepted: set[str] = set()
    for event in events:
        match event.WhichOneof("event"):
            case "queue_changed":
                changed = event.queue_changed
                if changed.message.delivery == v1.DELIVERY_FOLLOW_UP:
                    if changed.fate == v1.QueuedMessage.FATE_QUEUED:
                        queue.append(changed.message.name)
                        accepted.add(changed.message.name)
                    elif changed.fate == v1.QueuedMessage.FATE_WITHDRAWN:
                        queue.remove(changed.message.name)
            case "message_added" if event.message_added.name not in accepted:
                message = event.message_added
                if message.role == v1.ROLE_USER and not message.meta:
                    if running is None:
                        running = Cycle(message.name, follow_up=False)
                    else:
                        running.items.append(("steer", message.name))
                elif running is not None:
                    running.items += _items(message)
            case "run_stopped":
                assert running is not None, "a run ended that had not begun"
                running.run, running.stop = event.run_stopped.request_cycle, event.run_stopped.reason
                running.detail = event.run_stopped.detail
                closed.append(running)
                running = Cycle(queue.pop(0), follow_up=True) if queue else None
            case _:
                pass
    return [*closed, running] if running else closed


def _items(message: v1.Message) -> list[tuple[str, ...]]:
    served = message.llm_request_id
    items: list[tuple[str, ...]] = []
    for block in message.content:
        match block.WhichOneof("block"):
            case "text" if message.role == v1.ROLE_AGENT:
                items.append(("assistant", served, message.name, block.text))
            case "reasoning":
                items.append(("reasoning", served, message.name, block.reasoning))
            case "tool_call":
                group = v1.ToolGroup.Name(block.tool_call.group)
                items.append(("call", served, message.name, block.tool_call.tool_use_id, group))
            case "tool_result":
                items.append(("result", message.name))
            case _:
                pass
    return items


def listed_steps(cycle: v1.RequestCycle) -> list[Any]:
    """The same values from what ListRequestCycles answers."""
    done: list[Any] = []
    for step in cycle.steps:
        kind = str(step.WhichOneof("step"))
        if kind != "ai_block":
            done.append((kind, getattr(step, kind).name))
            continue
        block = step.ai_block
        groups = [(v1.ToolGroup.Name(each.group), _ids(each.calls)) for each in block.tool_call_groups]
        text = block.reasoning or block.assistant
        done.append((block.WhichOneof("text") or "assistant", text, block.synthetic, groups))
    return done


def listed_rounds(cycle: v1.RequestCycle) -> list[tuple[str, list[str], str, list[str]]]:
    return [(each.llm_request_id, list(each.inputs), each.output, list(each.tool_use_ids)) for each in cycle.rounds]


def _ids(calls: Sequence[v1.ToolCall]) -> list[str]:
    return [call.tool_use_id for call in calls]
