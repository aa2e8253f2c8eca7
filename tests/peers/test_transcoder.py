"""Envoy's transcoder as the judge of the gateway.

Both, before one server, answer the same requests with the same status and the same JSON, but for what the table in
docs/api/http.md says. Each has a conversation of its own, which lives the same life by the same requests; then every
call of the contract that is not streamed is asked for in good and bad ways.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import httpx
import pytest
from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor

from server.gateway.routes import Route, contract
from tests.documents.pages import ROOT, section, table
from tests.peers.front import transcoder
from tests.support.fake_provider import FakeProvider, calls, says, stalls
from tests.support.patience import PATIENCE, eventually
from tests.support.server_process import ServerProcess, Servers, http_url, provider

LEAST = 300
PAGE = ROOT / "docs" / "api" / "http.md"
NOTHING = "00000000000000000000000000"
Answer: TypeAlias = tuple[int, Any]
"""A status, and JSON, or text that is none."""
VARIES = (
    (re.compile(r"by-the-gateway|by-envoy"), "slug"),
    (re.compile(r"part-\d+|/work\d+"), "a part"),
    (re.compile(r'"nextPageToken": "[^"]+"'), '"nextPageToken": "one"'),
    (re.compile(r'("\w*[rR]evision"|"step"): "\d+"'), r'\1: "1"'),  # a text that comes in two reads is two steps
    (re.compile(r"(duration_ms\W+|elapsed\w*\W+)[\d.]+"), r"\g<1>1"),
    (re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z|\b\d{13}\b"), "a time"),
    (re.compile(r"\b[0-9a-f]{16,}\b"), "a digest"),
    (re.compile(r"\b\d+(\.\d+)?s\b"), "a duration"),
)
SNAKE = re.compile(r"(?<=[a-z])_([a-z])")
"""In errors Envoy has the contract's names of fields, and the gateway those of JSON."""
GENERATED = re.compile(
    r"\b[0-9a-z]{16}\b|\b[0-9A-Za-z]{26}\b|\b[a-z]+-[a-z]+-[2-9a-z]{4}\b|\b[0-9a-f]{8}-[0-9a-f-]{27}\b|\btoolu_\w+"
)


@dataclass
class Front:
    """One of the two, with the conversation that it has made."""

    http: httpx.Client
    names: dict[str, str]
    """What `@…@` in a request stands for here."""

    def ask(self, asked: Asked) -> Answer:
        """The status, and the JSON without what differs between any two calls; of errors the message and details."""
        target, body = (re.sub("@([a-z]+)@", lambda found: self.names[found[1]], text) for text in asked.request)
        headers = {"Content-Type": "application/json"} if body else {}
        headers |= {} if asked.token else {"Authorization": ""}
        url = str(self.http.base_url).rstrip("/") + target
        answer = self.http.request(asked.verb, url, content=body.encode(errors="surrogateescape"), headers=headers)
        try:
            found = answer.json()
        except ValueError:
            return answer.status_code, answer.text
        if answer.is_error:
            error = found.get("error", found)
            found = {"message": error["message"], "details": error.get("details", [])}
            found = json.loads(SNAKE.sub(lambda name: name[1].upper(), json.dumps(found)))
        self.found = found
        return answer.status_code, self._plain(found)

    def _plain(self, found: Any) -> Any:
        text = json.dumps(found, sort_keys=True)
        for pattern, word in VARIES:
            text = pattern.sub(word, text)
        seen: dict[str, str] = {}
        return json.loads(GENERATED.sub(lambda found: seen.setdefault(found[0], f"id {len(seen)}"), text))


@dataclass(frozen=True)
class Asked:
    """A request to both."""

    odd: str
    """What is odd about it: the first column of the table."""
    verb: str
    target: str
    body: str = ""
    token: bool = True

    @property
    def request(self) -> tuple[str, str]:
        return self.target, self.body


@pytest.fixture(scope="module")
def behind(fake_provider: FakeProvider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    servers = Servers()
    yield servers(tmp_path_factory.mktemp("server"), "--http", "127.0.0.1:0", **provider(fake_provider.url))
    servers.close()


@pytest.fixture(scope="module")
def fronts(
    behind: ServerProcess, fake_provider: FakeProvider, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[Front]]:
    with transcoder(tmp_path_factory.mktemp("envoy"), behind.address) as envoy, ExitStack() as stack:
        made = []
        for url, slug in ((http_url(behind), "by-the-gateway"), (envoy, "by-envoy")):
            part = fake_provider.part(calls(("bash", {"command": "echo hi"})), says("Hello."), stalls, says("Done."))
            folder = tmp_path_factory.mktemp("work")
            headers = {"Authorization": f"Bearer {behind.token}"}
            http = stack.enter_context(httpx.Client(base_url=url, headers=headers, timeout=PATIENCE, trust_env=False))
            made.append(
                Front(
                    http,
                    {"slug": slug, "conversation": f"conversations/{slug}", "part": part.key, "folder": str(folder)},
                )
            )
        eventually(lambda: reached(made[1].http), "Envoy listens")
        yield made


def reached(http: httpx.Client) -> bool:
    try:
        return http.get("/v1/serverInfo").status_code == 200
    except httpx.TransportError:
        return False


# --- the requests -----------------------------------------------------------------------------------------------------


LIFE = (
    ("", "POST", "/v1/conversations", {"workingDirectory": "@folder@", "slug": "@slug@"}),
    ("", "PATCH", "/v1/@conversation@?updateMask=approvalPolicy", {"approvalPolicy": "APPROVAL_POLICY_ASK_ALL"}),
    ("", "POST", "/v1/@conversation@/approvalRules", {"action": "ACTION_DENY", "commandPrefix": "git push"}),
    ("rule", "GET", "/v1/@conversation@/approvalRules", None),
    ("run", "POST", "/v1/@conversation@:send", {"text": "@part@"}),
    ("approval", "GET", "/v1/@conversation@/approvals", None),
    ("", "POST", "/v1/@conversation@:send", {"text": "Are you there?"}),
    ("queued", "POST", "/v1/@conversation@:send", {"text": "Later", "delivery": "DELIVERY_FOLLOW_UP"}),
    ("", "POST", "/v1/@queued@:withdraw", None),
    ("", "POST", "/v1/@approval@:resolve", {"decision": "APPROVAL_DECISION_APPROVE"}),
    ("", "GET", "/v1/@run@:wait", None),
    ("message", "GET", "/v1/@conversation@/messages", None),
    ("second", "POST", "/v1/@conversation@:send", {"text": "More"}),
    ("", "POST", "/v1/@conversation@:cancel", {"discardQueued": True}),
    ("", "GET", "/v1/@second@:wait", None),
    ("", "PATCH", "/v1/@conversation@?updateMask=title,labels.key", {"title": "Über", "labels": {"key": "ä\u2028"}}),
    ("fork", "POST", "/v1/@conversation@:fork", {"title": "Twin"}),
    ("", "GET", "/v1/@conversation@:verify", None),
)  # fmt: skip
"""A life: what is learned from the answer, and the request."""
LEARNED = {
    "rule": ("approvalRules", 0, "name"),
    "run": ("run",),
    "second": ("run",),
    "approval": ("approvals", 0, "name"),
    "queued": ("message", "name"),
    "message": ("messages", 0, "name"),
    "fork": ("conversation", "name"),
}


def learn(front: Front, asked: Asked, name: str) -> Answer:
    """Ask until the answer has what is to be learned from it."""
    answers = []

    def there() -> bool:
        answers.append(front.ask(asked))
        front.names[name] = found_at(front.found, LEARNED[name])
        return bool(front.names[name])

    eventually(there, f"there is a {name}")
    return answers[-1]


def found_at(found: Any, place: tuple[str | int, ...]) -> str:
    for each in place:
        try:
            found = found[each]
        except (KeyError, IndexError):
            return ""
    return str(found)


BODIES = (
    ("an unknown field", '{"unknown": 1}'),
    ("a body that is not JSON", '{"a": '),
    ("a body that is not an object", "[]"),
    ("NaN", '{"labels": NaN}'),
    ("a body that is not UTF-8", '{"\udcff": 1}'),
)
CHANGING = (
    "CreateConversation", "SendMessage", "SpawnSubAgents", "ForkConversation", "ContinueConversation",
    "TriggerContinuation", "CreateApprovalRule",
)  # fmt: skip
"""Calls that leave something behind."""
KNOWN = {
    "ListTransitions": "conversations/by-the-gateway",  # a text that comes in two reads is two steps: both read one log
    "conversations/*": "@conversation@",
    "conversations/*/approvals/**": "@approval@",
    "conversations/*/approvalRules/*": "@rule@",
    "approvalRules/*": "approvalRules/none",
    "conversations/*/messages/*": "@message@",
    "conversations/*/requestCycles/*": "@run@",
    "models/**": "models/demo",
    "tools/**": "tools/bash",
}
"""A resource that is there, by the call or by the pattern of its name."""
LAST = ("ArchiveConversation", "UnarchiveConversation", "DeleteApprovalRule", "DeleteConversation")


def asked_of(route: Route) -> Iterator[Asked]:
    """Yield good and bad requests of a call."""
    pattern = re.search(r"\{[\w.]+=(.*)\}", route.path)
    of = pattern[1] if pattern else ""
    known = KNOWN.get(route.name) or KNOWN.get(of, of.replace("**", "*").replace("*", "none"))
    there = re.sub(r"\{.*\}", known, route.path)
    missing = re.sub(r"\{.*\}", re.sub(r"\*+", NOTHING, of), route.path)
    body = "{}" if route.body else ""

    def made(odd: str, target: str = there, sent: str = body, verb: str = route.verb, *, token: bool = True) -> Asked:
        return Asked(odd, verb, target, sent, token)

    yield made("", token=False)
    yield made("a method that the path does not allow", verb="PUT")
    if pattern:
        yield made("", missing)
        yield from (made("", missing.replace(NOTHING, name, 1)) for name in ("a%2Fb", "a%00b", "a%41b", "%2e%2e"))
        yield made("a percent sign that begins no escape", missing.replace(NOTHING, "a%zzb", 1))
    if route.body:
        # Envoy ignores what is unknown, and goes on.
        yield from (made(odd, missing if route.name in CHANGING else there, text) for odd, text in BODIES)
    elif route.verb == "GET":
        yield made("an unexpected body", sent="{}")
    if route.body != "*":
        yield made("an unknown parameter", f"{there}?unknown=1")
    yield from (made(*each) for each in of_fields(route, there))
    yield made("")


def of_fields(route: Route, there: str) -> Iterator[tuple[str, str, str]]:
    """Yield the target and the body with each field of the request, well and wrongly written."""
    kind = route.method.input_type
    inner = kind.fields_by_name[route.body].message_type if route.body in kind.fields_by_name else None
    for each in (inner or kind).fields:
        if each.message_type is not None or each.name in {"page_token", "etag", "slug", route.field.split(".")[-1]}:
            continue
        right, wrong = written(each)
        name, text = each.json_name, json.dumps([right] if each.is_repeated else right)
        if not route.body:
            yield "a parameter of another type", f"{there}?{name}={wrong}", ""
            value = text.strip('"')
            yield "", f"{there}?{each.name}={value}", ""
            yield "a duplicate parameter", f"{there}?{name}={value}&{name}={value}", ""
            continue
        yield "a value of another type", there, json.dumps({name: wrong})
        if route.name not in CHANGING:
            yield "", there, f'{{"{each.name}": {text}}}'
            yield "a duplicate key", there, f'{{"{name}": {text}, "{name}": null}}'


def written(each: FieldDescriptor) -> tuple[Any, Any]:
    """Return a value as JSON has it, and one of another type."""
    match each.cpp_type:
        case FieldDescriptor.CPPTYPE_BOOL:
            return True, "maybe"
        case FieldDescriptor.CPPTYPE_STRING:
            return "x", 5
        case FieldDescriptor.CPPTYPE_ENUM:
            return cast("EnumDescriptor", each.enum_type).values[1].name, "NOTHING_OF_THE_KIND"
        case _:
            return 1, "many"


def life(fronts: list[Front]) -> Iterator[tuple[Asked, list[Answer]]]:
    for name, verb, target, body in LIFE:
        asked = Asked("", verb, target, "" if body is None else json.dumps(body))
        yield asked, [learn(each, asked, name) if name else each.ask(asked) for each in fronts]


def every_call(fronts: list[Front]) -> Iterator[tuple[Asked, list[Answer]]]:
    unary = [route for route in contract() if not route.method.server_streaming]
    for route in sorted(unary, key=lambda route: LAST.index(route.name) if route.name in LAST else -1):
        for asked in asked_of(route):
            answers = [each.ask(asked) for each in fronts]
            if answers[0] != answers[1] and asked.verb == "GET" and not asked.odd:  # the audit trail grew in between
                answers = [each.ask(asked) for each in fronts]
            yield asked, answers


def shown(answer: Answer) -> str:
    """What the table says of an answer."""
    return f"{answer[0]} as text" if isinstance(answer[1], str) else str(answer[0])


def test_envoy_answers_as_the_gateway_but_for_what_the_page_lists(fronts: list[Front]) -> None:
    different: dict[str, tuple[set[str], set[str]]] = defaultdict(lambda: (set(), set()))
    answers = [*life(fronts), *every_call(fronts)]
    for asked, (ours, theirs) in answers:
        assert ours == theirs or asked.odd, asked
        if ours != theirs:
            different[asked.odd][0].add(shown(ours))
            different[asked.odd][1].add(shown(theirs))
    found = {odd: (", ".join(sorted(ours)), ", ".join(sorted(theirs))) for odd, (ours, theirs) in different.items()}
    rows = table(section(PAGE.read_text(), "## The same by Envoy"))
    assert found == {request: (ours, theirs) for request, ours, theirs, _ in rows}
    assert len(answers) >= LEAST
