"""What HTTP carries becomes the request that the contract means, or is refused with the name of the field."""

import json
import re
import time
from typing import Any
from urllib.parse import quote, urlencode

import grpc
import grpc.aio
import pytest
from bedrock import v1
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from starlette.requests import Request

from server.contract.errors import MalformedRequestError
from server.gateway import upstream
from server.gateway.event_streams import requests as followed_streams
from server.gateway.json_requests import request_from
from server.gateway.json_responses import as_error
from server.gateway.routes import NoRouteError, Route, contract
from tests.unit.clients.test_values import filled

ROUTES = contract()
SEND = "/v1/conversations/a:send"


def made(verb: str, target: str, body: bytes = b"") -> Any:
    path, _, query = target.partition("?")
    route, name = ROUTES.find(verb, path)
    return request_from(route, name, query, body)


def refusal(verb: str, target: str, body: bytes = b"") -> tuple[str, str]:
    with pytest.raises(MalformedRequestError) as caught:
        made(verb, target, body)
    (found,) = caught.value.violations
    return found


# --- every call -------------------------------------------------------------------------------------------------------


def parameters(kind: Any, values: dict[str, Any]) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for name, value in values.items():
        field = next(each for each in kind.fields if each.json_name == name)
        each_value = value if field.is_repeated else [value]
        found += [(name, str(each).lower() if isinstance(each, bool) else str(each)) for each in each_value]
    return found


def sent_as(route: Route, request: Message) -> tuple[str, bytes]:
    """The URL and the body of a request, as a client would make them that knows google/api/http.proto."""
    masks = {}
    plain = type(request)()
    plain.CopyFrom(request)
    for name, field in request.DESCRIPTOR.fields_by_name.items():
        if field.message_type is not None and field.message_type.name == "FieldMask":
            masks[name] = ",".join(getattr(request, name).paths)
            plain.ClearField(name)  # protobuf's JSON has no way to write a path with the key of a label
    values: dict[str, Any] = MessageToDict(plain)
    path = route.path
    if route.field:
        *outer, last = route.field.split(".")
        place = values
        for part in outer:
            place = place[part]
        path = re.sub(r"\{.*?\}", quote(place.pop(last), safe="/:"), path)
    body = b""
    if route.body == "*":
        body, values = json.dumps(values).encode(), {}
    elif route.body:
        named = request.DESCRIPTOR.fields_by_name[route.body].json_name
        body = json.dumps(values.pop(named)).encode()
    for name, paths in masks.items():
        values[request.DESCRIPTOR.fields_by_name[name].json_name] = paths
    return f"{path}?{urlencode(parameters(request.DESCRIPTOR, values))}", body


@pytest.mark.parametrize("route", list(ROUTES), ids=lambda route: f"{route.verb} {route.path}")
def test_every_field_of_every_request_arrives(route: Route) -> None:
    request = filled(route.request)
    if route.field:
        *outer, last = route.field.split(".")
        place = request
        for part in outer:
            place = getattr(place, part)
        template = re.search(r"=(.*)\}", route.path)
        assert template
        setattr(place, last, re.sub(r"\*\*?", "x:7", template[1]))
    url, body = sent_as(route, request)
    assert made(route.verb, url, body) == request


# --- paths ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "name", "value"),
    [
        ("/v1/conversations/a:1", "GetConversation", "conversations/a:1"),
        ("/v1/conversations/a%3Averify", "GetConversation", "conversations/a:verify"),
        ("/v1/conversations/a:verify", "VerifyConversation", "conversations/a"),
        ("/v1/conversations/a:b:verify", "VerifyConversation", "conversations/a:b"),
        ("/v1/conversations/a%2Fb", "GetConversation", "conversations/a%2Fb"),
        ("/v1/conversations/%2e%2e", "GetConversation", "conversations/.."),
        ("/v1/conversations/a/messages/m%20%C3%A4", "GetMessage", "conversations/a/messages/m ä"),
        ("/v1/models/qwen/qwen3:8b", "GetModel", "models/qwen/qwen3:8b"),
        ("/v1/models/qwen/qwen3:latest", "GetModel", "models/qwen/qwen3:latest"),
        ("/v1/conversations/a/approvals/b/c", "GetApproval", "conversations/a/approvals/b/c"),
        ("/v1/conversations:watch", "WatchConversations", ""),
    ],
)
def test_a_path_is_read_before_its_escapes_are(path: str, name: str, value: str) -> None:
    route, found = ROUTES.find("GET", path)
    assert (route.name, found) == (name, value)


@pytest.mark.parametrize(
    "path", ["", "/", "/v1", "/v1/", "/v1/conversations/", "/v1//a", "/v1/conversations/a/", "/v1/conversations/a/b",
             "/v2/models", "/v1/models/", "/v1/conversations/a:nothing/messages/", "//v1/models", ":send"],
)  # fmt: skip
def test_a_path_that_is_none(path: str) -> None:
    with pytest.raises(NoRouteError) as caught:
        ROUTES.find("GET", path)
    assert caught.value.allowed == []


@pytest.mark.parametrize("verb", ["GET", "POST"])
def test_a_verb_that_is_none_is_told_from_those_that_are(verb: str) -> None:
    with pytest.raises(NoRouteError, match="unknown verb frobnicate; verbs of this path: archive, un") as caught:
        ROUTES.find(verb, "/v1/conversations/x:frobnicate")
    assert caught.value.allowed == []


def test_a_path_with_another_method_names_the_right_ones() -> None:
    with pytest.raises(NoRouteError) as caught:
        ROUTES.find("PUT", "/v1/conversations/a")
    assert caught.value.allowed == ["DELETE", "GET", "PATCH"]


@pytest.mark.parametrize("path", ["/v1/conversations/%zz", "/v1/conversations/%C3", "/v1/conversations/%"])
def test_escapes_that_are_no_text_are_refused(path: str) -> None:
    with pytest.raises(MalformedRequestError):
        ROUTES.find("GET", path)


# --- bodies -----------------------------------------------------------------------------------------------------------


DEEP = [b'{"outputSchema":' + b'{"a":' * levels + b"1" + b"}" * levels + b"}" for levels in (34, 90, 300, 5_000)]


@pytest.mark.parametrize(
    ("body", "field", "text"),
    [
        (b'{"texte": "a"}', "texte", "unknown field"),
        (b'{"generation": {"warmth": 1}}', "generation.warmth", "unknown field"),
        (b'{"images": [{"data": "AA=="}, {"dat": ""}]}', "images[1].dat", "unknown field"),
        (b'{"text": 1}', "text", "must be a string"),
        (b'{"text": ["a"]}', "text", "must be a string"),
        (b'{"images": {}}', "images", "must be an array"),
        (b'{"images": ["a"]}', "images[0]", "must be an object"),
        (b'{"images": [{"data": "!!!!"}]}', "images[0].data", "must be Base64"),
        (b'{"images": [{"data": "AAAAA"}]}', "images[0].data", "must be Base64"),
        (b'{"delivery": "DELIVERY_NOW"}', "delivery", "must be one of DELIVERY_DIRECT, "),
        (b'{"delivery": true}', "delivery", "must be one of"),
        (b'{"delivery": 1.5}', "delivery", "must be one of"),
        (b'{"generation": "high"}', "generation", "must be an object"),
        (b'{"generation": {"temperature": "warm"}}', "generation.temperature", "must be a number"),
        (b'{"generation": {"temperature": "0_1"}}', "generation.temperature", "must be a number"),
        ('{"generation": {"maxOutputTokens": "\u0661"}}'.encode(), "generation.maxOutputTokens", "must be a whole"),
        *((b'{"%s": 1%s}}' % (path, b"0" * 400), "", "is not valid JSON") for path in
          (b'outputSchema": {"a', b'generation": {"temperature')),
        (b'{"delivery": "DELIVERY_STEER\\u0000x"}', "delivery", "must be one of"),
        (b'{"text\\u0000x": "a"}', "text\0x", "unknown field"),
        (b'{"generation": {"temperature": true}}', "generation.temperature", "must be a number"),
        (b'{"generation": {"maxOutputTokens": 1.5}}', "generation.maxOutputTokens", "must be a whole number"),
        (b'{"generation": {"maxOutputTokens": 1e300}}', "generation.maxOutputTokens", "must be a whole number"),
        (b'{"generation": {"maxOutputTokens": "1_0"}}', "generation.maxOutputTokens", "must be a whole number"),
        (b'{"outputSchema": []}', "outputSchema", "is not valid JSON for this field's type"),
        (b'{"text": "a", "text": "b"}', "text", "must not be given twice"),
        (rb'{"\ud800": 1, "\ud800": 2}', r"\ud800", "lone surrogate"),
        (rb'{"generation": {"\ud800": 1}}', r"\ud800", "lone surrogate"),
        (rb'{"text": "x", "delivery": "\uDe00"}', "delivery", "lone surrogate"),
        (rb'{"images": [{"mediaType": "\ud800"}]}', "mediaType", "lone surrogate"),
        (rb'{"outputSchema": {"enum": ["a", [1, ["\udc00"]]]}}', "enum", "lone surrogate"),
        (rb'{"images": ["\ud800"]}', "images", "lone surrogate"),
        (b'{"outputSchema": {"a": 1, "a": 2}}', "a", "must not be given twice"),
        (b'{"requestId": "a", "request_id": "b"}', "request_id", "must not be set together with requestId"),
        (b'{"name": "conversations/b"}', "name", "must be conversations/a, as in"),
        (b'{"text": NaN}', "", "NaN is not valid JSON"),
        (b'{"outputSchema": {"a": -Infinity}}', "", "-Infinity is not valid JSON"),
        (b'{"text": "\xff"}', "", "the body is not UTF-8"),
        (b'{"text": "\\ud800"}', "text", "lone surrogate"),
        (b'{"outputSchema": {"\\ud800": 1}}', r"\ud800", "lone surrogate"),
        (b'{"text": ', "", "the body is not valid JSON"),
        (b'{"text": "a"} {}', "", "the body is not valid JSON"),
        (b"[]", "", "must be a JSON object"),
        (b'"text"', "", "must be a JSON object"),
        (b"[" * 100_000, "", "nested too deeply"),
        *((body, "", "nested too deeply") for body in DEEP),
        (b'{"generation": {"maxOutputTokens": 1' + b"0" * 5_000 + b"}}", "", "the body is not valid JSON"),
    ],
)  # fmt: skip
def test_a_body_that_is_no_request_names_what_is_wrong(body: bytes, field: str, text: str) -> None:
    found, told = refusal("POST", SEND, body)
    assert (found, text in told) == (field, True), (found, told)


def test_many_keys_are_compared_in_no_time() -> None:
    body = json.dumps({f"k{number}": 0 for number in range(20_000)})
    began = time.process_time()
    assert refusal("POST", SEND, f'{body[:-1]}, "last": 0, "last": 0}}'.encode()) == ("last", "must not be given twice")
    assert time.process_time() - began < 2


@pytest.mark.parametrize(
    ("verb", "target", "field", "text"),
    [
        ("GET", "/v1/models?pageSiz=1", "pageSiz", "unknown field; known fields: pageSize, pageToken"),
        ("GET", "/v1/models?pageSize=one", "pageSize", "must be a whole number"),
        ("GET", "/v1/models?pageSize=3000000000", "pageSize", "must be a whole number"),
        ("GET", "/v1/models?pageSize=1&page_size=2", "page_size", "must not be given twice"),
        ("PATCH", "/v1/conversations/x?updateMask=title&updateMask.paths=x", "updateMask.paths", "given twice"),
        ("GET", "/v1/models?pageToken=%ff", "", "the query string is not UTF-8"),
        ("GET", "/v1/models?" + "pageSize=1&" * 101, "", "has too many parameters"),
        ("GET", "/v1/conversations/a:subscribe?omitDeltas=1", "omitDeltas", "must be true or false"),
        ("GET", "/v1/conversations/a:subscribe?afterRevision=1&recentMessages=1", "recentMessages",
         "must not be set together with afterRevision"),
        ("GET", "/v1/conversations/a:subscribe?name=conversations/b", "name", "must be conversations/a, as in"),
        ("GET", "/v1/auditEntries?startTime=soon", "startTime", "is not valid JSON for this field's type"),
        ("GET", "/v1/auditEntries?startTime=2026-01-01T00:00:00%2B99:99", "startTime", "is not valid JSON for"),
        ("GET", "/v1/models?pageSize%00abc=1", "pageSize\0abc", "unknown field"),
        ("PATCH", "/v1/conversations/a?updateMask=title%00", "updateMask", "must be a string"),
        ("PATCH", "/v1/conversations/a?updateMask=%60", "updateMask", "must be a string"),
        ("GET", "/v1/auditEntries?outcome=GOOD", "outcome", "must be one of OUTCOME_ACCEPTED, OUTCOME_REFUSED"),
        ("POST", "/v1/conversations/a:send?text=hi", "text", "must be in the body"),
        ("PATCH", "/v1/conversations/a?conversation.title=b", "conversation.title", "unknown field"),
        ("PATCH", "/v1/conversations/a?conversation=b", "conversation", "unknown field"),
    ],
)  # fmt: skip
def test_a_parameter_that_is_none_is_named(verb: str, target: str, field: str, text: str) -> None:
    found, told = refusal(verb, target)
    assert (found, text in told) == (field, True), (found, told)


@pytest.mark.parametrize("seconds", ["1_0s", "\u0661s", "0.1_0s", "--1s", 1])
def test_a_duration_has_one_form(seconds: str | int) -> None:
    body = {"tasks": [{"task": "a", "timeout": seconds}]}
    field, text = refusal("POST", "/v1/conversations/a:spawnSubAgents", json.dumps(body).encode())
    assert (field, text) == ("tasks[0].timeout", "is not valid JSON for this field's type")


@pytest.mark.parametrize("text", ["1_0", "\u0661", "nan", "0", ".", "1e999"])
def test_a_deadline_is_a_number_of_seconds(text: str) -> None:
    http = Request({"type": "http", "headers": [(b"x-server-timeout", text.encode())]})
    with pytest.raises(MalformedRequestError, match="must be a number of seconds"):
        upstream._timeout(http)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"watch": "\xff"}', "the body is not UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"watch": {}, "watch": {}}', "must not be given twice"),
        (b'{"watch": {"pageSize": 1%s}}' % (b"0" * 30), "unknown field"),
        (b"[]", "the body must contain subscriptions or watch"),
    ],
)
def test_what_is_no_list_of_streams_is_refused(body: bytes, text: str) -> None:
    with pytest.raises(MalformedRequestError, match=text):
        followed_streams(
            body, *(ROUTES.find("GET", f"/v1/conversations{each}")[0] for each in ("/a:subscribe", ":watch"))
        )


def test_only_fields_that_can_be_set_are_offered() -> None:
    field, text = refusal("PATCH", "/v1/conversations/a", b'{"workingDir": "/"}')
    assert (field, " workingDirectory," in text, "createTime" in text) == ("conversation.workingDir", True, False)


def test_what_grpc_says_itself_is_not_passed_on() -> None:
    nothing = grpc.aio.Metadata()
    error = grpc.aio.AioRpcError(grpc.StatusCode.RESOURCE_EXHAUSTED, nothing, nothing, "exceeds (…); :path:73B")
    assert as_error(error)[1]["error"]["message"] == "the call failed before the server could answer"


def test_a_request_without_a_body_has_none() -> None:
    assert refusal("GET", "/v1/models", b"{}") == ("", "GET takes no body; put the fields in the query string")
    assert made("POST", "/v1/conversations/a:cancel") == v1.CancelConversationRequest(name="conversations/a")


def test_null_is_what_is_not_there() -> None:
    assert made(
        "POST", SEND, b'{"name": null, "text": null, "images": null, "generation": null}'
    ) == v1.SendMessageRequest(name="conversations/a")


def test_the_keys_of_labels_in_a_mask_stay_as_they_are() -> None:
    found = made("PATCH", "/v1/conversations/a?updateMask=approvalPolicy,labels.my_Key,budget.runTokens", b"{}")
    assert list(found.update_mask.paths) == ["approval_policy", "labels.my_Key", "budget.run_tokens"]
