"""A model of how several nodes share conversations on one database: who owns a family, and who acts for it.

It is the protocol alone, small enough that all its interleavings can be tried; the store on PostgreSQL, its nodes and
the tool hosts follow it. There are two nodes, one family, a database with the only clock that decides, and what is
late: heartbeats, commits, events, starts of tools, words to a tool host. A node can be stopped and go on (SIGSTOP, a
long collection, a starved machine), be killed, close its port, or lose its database session. One that starts anew is
another node. Its tool host is another process, which goes on meanwhile.

Times are in units of which a lease has `LEASE`. No time passes while something is due that the outside guarantees: the
end of a tool that its host has begun to kill. That a whole machine stands still, its tool hosts with it, is left out:
its tools act for a moment when it goes on, and no protocol can keep them from it.
"""

from collections import deque
from collections.abc import Iterator
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar

LEASE = 5
"""How long a heartbeat keeps a node alive in the database, from when it arrives there."""
YOUNG = 3
"""How long after a heartbeat was sent a node's host starts and keeps tools: less than `LEASE` by the time of a kill."""
KILL = 1
"""How long a tool host takes to end all that it has started."""
SURE = 2
"""How long a process that cannot be reached has to be gone before its family is taken without waiting for its lease."""


class Rule(StrEnum):
    """What keeps two nodes from acting for one family; each can be left out."""

    FENCE = "a commit names the owner"
    STEP = "a commit names the step that it follows"
    AFTER_COMMIT = "an event is published after its commit"
    IN_ORDER = "a watcher takes only the event that follows the last one"
    HOST_STARTS = "a tool host starts nothing without a lease"
    HOST_ENDS = "a tool host ends its tools with the lease"
    DEADLINE = "a tool host is told until when, not that it may go on"
    FROM_SENDING = "a lease is counted from when its heartbeat was sent"
    EXPIRED = "a family is taken only after the lease"
    REFUSED = "without waiting for it only if the process is gone"
    OPEN = "a port that the node has closed itself, as it drains, or not opened yet, says nothing"
    GRACE = "and its tool host has had the time to notice"
    QUIET_RELEASE = "a family is given up only without tools"


class Node(NamedTuple):
    """One node and its tool host."""

    running: bool = True
    stopped: bool = False
    session: bool = True
    """Whether the database still has its session."""
    listening: bool = True
    """Whether its port is open, as far as its process is there."""
    gone: int = 0
    """For how long its process has been gone, up to `SURE`."""
    beat: int = -1
    """The age of its heartbeat that is under way, up to `YOUNG`; -1: none."""
    arrived: int = 0
    """What the database did with that heartbeat: 1 it renewed the lease, 2 it refused, 0 it has not arrived."""
    lease: int = YOUNG
    """The age of its lease as it knows it, up to `YOUNG`."""
    untold: bool = False
    """Whether its tool host is still to be told of the last heartbeat."""
    owns: int = -1
    """The step of the family in its memory; -1: it has none."""
    commit: tuple[int, int] | None = None
    """Its commit under way: the step it follows, and 1 once it is accepted, 2 if it was refused."""
    event: int = 0
    """The event that it has still to publish; 0: none."""
    start: bool = False
    """Whether a tool is being started."""
    tool: bool = False
    host: int = 0
    """How long its host still keeps tools."""
    killing: int = -1
    """For how long its host has been killing; -1: it is not."""


class State(NamedTuple):
    """Everything."""

    nodes: tuple[Node, ...]
    leases: tuple[int, ...]
    """What remains of each lease, by the database's clock."""
    dead: tuple[bool, ...]
    """Who was declared dead, for good."""
    owner: int
    """-1: nobody."""
    step: int
    seen: int
    """The last event that a watcher has taken."""
    faults: int
    """How many more faults there can be."""


BEGIN = State(
    nodes=(Node(lease=0, owns=0, host=YOUNG), Node(lease=0)),
    leases=(LEASE, LEASE),
    dead=(False, False),
    owner=0,
    step=0,
    seen=0,
    faults=0,
)
"""The first node owns the family, and both have just renewed their leases."""


class Violation(Exception):
    """Two nodes acted for one family; the text says how."""


class Model:
    """The protocol with some of its rules, for so many steps of the family.

    `tools`: whether there are tools, and the heartbeats that keep them. `equal`: whether the second node has all that
    the first one has; else it is always well and has no tools, and only takes the family over, which leaves far fewer
    interleavings.
    """

    def __init__(self, rules: frozenset[Rule], steps: int, *, tools: bool, equal: bool) -> None:
        self._rules = rules
        self._steps = steps
        self._tools = tools
        self._equal = equal

    def after(self, state: State) -> Iterator[tuple[str, State]]:
        """Yield everything that can happen next, by name. Raises Violation if that must never be."""
        if all(node.killing < KILL for node in state.nodes):
            yield "time passes", self._later(state)
        for place, node in enumerate(state.nodes):
            for what, changed in (
                *self._outside(state, place, node),
                *(self._own(state, place, node) if node.running and not node.stopped else ()),
                *(_faults(state, place, node) if state.faults and (self._equal or not place) else ()),
            ):
                yield f"{what} of {'AB'[place]}", changed

    def _later(self, state: State) -> State:
        if not self._equal:
            first, second = state.nodes
            return state._replace(
                nodes=(self._older(first), second), leases=(max(0, state.leases[0] - 1), state.leases[1])
            )
        return state._replace(
            nodes=tuple(map(self._older, state.nodes)), leases=tuple(max(0, each - 1) for each in state.leases)
        )

    def _older(self, node: Node) -> Node:
        host = max(0, node.host - 1)
        begins = Rule.HOST_ENDS in self._rules and host == 0 and node.tool and node.killing < 0
        return node._replace(
            gone=node.gone if node.running else min(SURE, node.gone + 1),
            beat=node.beat if node.beat < 0 else min(YOUNG, node.beat + 1),
            lease=min(YOUNG, node.lease + 1),
            host=host,
            killing=0 if begins else node.killing + (node.killing >= 0),
        )

    def _outside(self, state: State, place: int, node: Node) -> Iterator[tuple[str, State]]:
        """Yield what happens without the node: at the database, in its tool host, by the others."""
        if node.beat >= 0 and not node.arrived:
            arrived = _with(state, place, arrived=2 if state.dead[place] else 1)
            yield (
                "a heartbeat",
                arrived if state.dead[place] else arrived._replace(leases=_set(state.leases, place, LEASE)),
            )
        if node.commit and not node.commit[1]:
            yield "a commit", self._committed(state, place, node.commit[0])
        if node.start:
            lease = node.host > 0 or Rule.HOST_STARTS not in self._rules
            yield "a tool's start", _checked(_with(state, place, start=False, tool=lease and node.killing < 0))
        if node.killing >= 0:
            yield "a tool's end", _with(state, place, tool=False, killing=-1)
        if node.stopped:
            yield "going on", _with(state, place, stopped=False)
        if not state.dead[place] and self._may_take(state, place, node):
            yield "a death certificate", state._replace(dead=_set(state.dead, place, True))

    def _committed(self, state: State, place: int, follows: int) -> State:
        fenced = Rule.FENCE in self._rules and state.owner != place
        if fenced or (Rule.STEP in self._rules and state.step != follows):
            return _with(state, place, commit=(follows, 2))
        if state.owner != place:
            raise Violation("a commit of a node that does not own the family")
        if state.step != follows:
            raise Violation("a commit that follows another step")
        return _with(state, place, commit=(follows, 1))._replace(step=state.step + 1)

    def _may_take(self, state: State, place: int, node: Node) -> bool:
        """Return whether the other node may declare this one dead."""
        other = state.nodes[1 - place]
        if not other.running or other.stopped:
            return False
        silent = not node.listening and Rule.OPEN not in self._rules
        refused = not node.running or silent or Rule.REFUSED not in self._rules
        sure = node.gone == SURE or node.running or Rule.GRACE not in self._rules
        return state.leases[place] == 0 or Rule.EXPIRED not in self._rules or (not node.session and refused and sure)

    def _own(self, state: State, place: int, node: Node) -> Iterator[tuple[str, State]]:
        """Yield what a node does itself."""
        if not self._has_tools(place):
            pass
        elif node.beat < 0:
            yield "sending a heartbeat", _with(state, place, beat=0, arrived=0)
        elif node.arrived == 1:
            lease = node.beat if Rule.FROM_SENDING in self._rules else 0
            yield "a good answer", _with(state, place, beat=-1, lease=lease, untold=True)
        elif node.arrived:
            yield "its own end", _killed(state, place, node)
        if node.untold:
            host = YOUNG - node.lease if Rule.DEADLINE in self._rules else YOUNG
            yield "word to its host", _with(state, place, host=host, untold=False)
        if node.event:
            yield "an event", self._published(_with(state, place, event=0), node.event)
        if node.listening and self._has_tools(place):
            yield "the closing of its port", _with(state, place, listening=False)
        if not node.session:
            yield "a new session", _with(state, place, session=True)
        yield from self._of_the_family(state, place, node)

    def _of_the_family(self, state: State, place: int, node: Node) -> Iterator[tuple[str, State]]:
        free = state.owner < 0 or state.dead[state.owner]
        if node.owns < 0:
            if free and not state.dead[place]:
                yield "a claim", _checked(_with(state, place, owns=state.step)._replace(owner=place))
        elif node.commit is None and not node.event and node.owns < self._steps:
            event = 0 if Rule.AFTER_COMMIT in self._rules else node.owns + 1
            yield "sending a commit", _with(state, place, commit=(node.owns, 0), event=event)
        if node.commit and node.commit[1] == 1:
            step = node.commit[0] + 1
            event = step if Rule.AFTER_COMMIT in self._rules else node.event
            yield (
                "an accepted commit",
                _with(state, place, commit=None, event=event, owns=step if node.owns >= 0 else -1),
            )
        elif node.commit and node.commit[1]:
            ended = _with(state, place, commit=None, owns=-1, start=False)
            yield "a refused commit", _with(ended, place, killing=0) if node.tool and node.killing < 0 else ended
        if node.owns >= 0:
            if self._has_tools(place) and not node.tool and not node.start:
                yield "starting a tool", _with(state, place, start=True)
            if state.owner == place and not (Rule.QUIET_RELEASE in self._rules and (node.tool or node.start)):
                yield "giving up", _with(state, place, owns=-1)._replace(owner=-1)

    def _has_tools(self, place: int) -> bool:
        return self._tools and (self._equal or not place)

    def _published(self, state: State, event: int) -> State:
        """Return the state after a watcher was told of an event; one that is not the next it gets from the database."""
        if Rule.IN_ORDER in self._rules and event != state.seen + 1:
            return state._replace(seen=max(state.seen, state.step)) if event > state.seen else state
        if event > state.step:
            raise Violation("an event that was not committed")
        if event <= state.seen:
            raise Violation("an event of a node that does not own the family, after those of another")
        return state._replace(seen=event)


def _faults(state: State, place: int, node: Node) -> Iterator[tuple[str, State]]:
    less = state._replace(faults=state.faults - 1)
    if node.running:
        yield "the kill", _killed(less, place, node)
        if not node.stopped:
            yield "a stop", _with(less, place, stopped=True)
        if node.session:
            yield "a lost session", _with(less, place, session=False)


def _killed(state: State, place: int, node: Node) -> State:
    """Return the state after the end of a node's process; its tool host notices at once, and kills."""
    return _with(
        state,
        place,
        running=False,
        stopped=False,
        session=False,
        untold=False,
        owns=-1,
        event=0,
        start=False,
        host=0,
        killing=max(node.killing, 0) if node.tool else -1,
    )


def _checked(state: State) -> State:
    """Return the state. Raises Violation if a tool is alive whose node has lost the family to another one."""
    if any(node.tool and state.owner not in {place, -1} for place, node in enumerate(state.nodes)):
        raise Violation("a tool of a node that does not own the family")
    return state


def _with(state: State, place: int, **changes: Any) -> State:
    return state._replace(nodes=_set(state.nodes, place, state.nodes[place]._replace(**changes)))


T = TypeVar("T")


def _set(values: tuple[T, ...], place: int, value: T) -> tuple[T, ...]:
    return (*values[:place], value, *values[place + 1 :])


class Found(NamedTuple):
    """What a search has come to."""

    states: int
    violation: str = ""
    way: tuple[str, ...] = ()
    """The shortest way there."""
    whole: bool = False
    """Whether there was nothing left to try."""


def search(
    rules: frozenset[Rule], *, steps: int, faults: int, most: int, tools: bool = True, equal: bool = False
) -> Found:
    """Try everything that can happen, the shortest ways first, until a violation or `most` states."""
    model = Model(rules, steps, tools=tools, equal=equal)
    begin = BEGIN._replace(faults=faults)
    before: dict[State, tuple[State, str] | None] = {begin: None}
    waiting = deque([begin])
    while waiting and len(before) < most:
        state = waiting.popleft()
        try:
            for what, after in model.after(state):
                if after not in before:
                    before[after] = state, what
                    waiting.append(after)
        except Violation as violation:
            return Found(len(before), str(violation), _way(before, state))
    return Found(len(before), whole=not waiting)


def _way(before: dict[State, tuple[State, str] | None], state: State) -> tuple[str, ...]:
    way: list[str] = []
    while (last := before[state]) is not None:
        state, what = last
        way.append(what)
    return tuple(reversed(way))
