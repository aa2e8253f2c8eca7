"""Renders the arguments of a tool call as text for users."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Names of a tool's arguments that describe a call best, the best first. Of these, the first one that a call has is
#: shown, without its name.
_TELLING = ("cmd", "command", "path", "pattern", "thoughts", "result")


def telling(given: dict[str, Any], clean: Callable[[str], str], raw: str = "") -> str:
    """Describe a tool call by its input `given` or, if that is empty, by the unparsed input `raw`.

    `clean` makes texts safe to print.
    """
    if not given:
        return clean(raw)
    if isinstance(tasks := given.get("tasks"), list):
        return _tasks(tasks, clean)
    if isinstance(patches := given.get("patches"), list):
        return "\n".join([headline(given, clean), *_patches(patches, clean)])
    key = next((key for key in _TELLING if key in given), None)
    lines = [] if key is None else [clean(str(given[key]))]
    lines += [f"{clean(str(name))}: {clean(str(value))}" for name, value in given.items() if name != key]
    return "\n".join(lines)


def _tasks(tasks: list[Any], clean: Callable[[str], str]) -> str:
    lines = [f"{len(tasks)} task{'' if len(tasks) == 1 else 's'}"]
    for number, task in enumerate(tasks, start=1):
        values = task if isinstance(task, dict) else {"task": task}
        more = [f"{clean(str(name))}: {clean(str(value))}" for name, value in values.items() if name != "task"]
        said = clean(str(values.get("task", ""))).replace("\n", "\n   ")
        lines.append(f"{number}. {said}" + (f" ({', '.join(more)})" if more else ""))
    return "\n".join(lines)


def headline(given: dict[str, Any], clean: Callable[[str], str]) -> str:
    """Describe a tool call in one line, by the most informative part of its input `given`; "" if there is none."""
    key = next((key for key in _TELLING if key in given), None)
    return "" if key is None else clean(str(given[key])).replace("\n", " ")


def _patches(patches: list[Any], clean: Callable[[str], str]) -> Iterator[str]:
    for patch in patches:
        values = dict(patch) if isinstance(patch, dict) else {"operation": str(patch)}
        old, new = values.pop("oldText", ""), values.pop("newText", "")
        more = [f"{clean(str(name))}: {clean(str(value))}" for name, value in values.items() if name != "operation"]
        yield clean(str(values.get("operation", ""))) + (f" ({', '.join(more)})" if more else "")
        for sign, text in (("-", old), ("+", new)):
            yield from (f"{sign} {line}" for line in clean(str(text)).removesuffix("\n").split("\n") if text)
