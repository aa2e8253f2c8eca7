"""docs/api/ is what the contract says, and the server can say nothing about an error that is not in its tables."""

import ast
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.rpc.error_details_pb2 import ErrorInfo
from openapi_spec_validator import validate

from actors.core.errors import Reason, Rejected
from server.contract import limits
from server.contract.errors import CODES, ConversationNotFoundError, MalformedRequestError, status_of
from server.services.grpc_server import SERVICES
from server.settings.config import load
from tests.documents.pages import API_GUIDE, ROOT, anchor, section, table
from tests.generate import api_docs, openapi
from tests.generate.contract import File, read_contract

PAGE = api_docs.TARGET.read_text(encoding="utf-8")
GUIDE = "\n".join(page.read_text(encoding="utf-8") for page in API_GUIDE)


@pytest.fixture(scope="module")
def contract() -> tuple[File, ...]:
    return read_contract()


# --- the page ---------------------------------------------------------------------------------------------------------


def test_the_reference_is_what_the_contract_says() -> None:
    assert api_docs.render(PAGE) == PAGE, "if this is meant: make api-docs"


def test_the_openapi_description_is_what_the_contract_says_and_valid() -> None:
    text = openapi.TARGET.read_text(encoding="utf-8")
    assert openapi.render() == text, "if this is meant: make api-docs"
    validate(json.loads(text))


def test_every_call_message_field_and_value_has_its_place(contract: tuple[File, ...]) -> None:
    headings = set(re.findall(r"^#+ (.+)$", PAGE, re.MULTILINE))
    for file in contract:
        for service in file.services:
            assert {service.name, *(call.name for call in service.calls)} <= headings
    first_cells = {cell for cell, *_ in table(PAGE)}
    source = "\n".join((ROOT / "protos" / file.path).read_text(encoding="utf-8") for file in contract)
    named = set(re.findall(r"^ +[\w.<>, ]+ (\w+) = \d+(?:;| \[.*)$", source, re.MULTILINE))
    assert len(named) > 200
    assert {f"`{name}`" for name in named} <= first_cells


def test_links_within_the_page_lead_to_headings() -> None:
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```$", "", PAGE, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    anchors = Counter(map(anchor, headings))
    assert [name for name, count in anchors.items() if count > 1] == []
    assert set(re.findall(r"\]\(#([^)]+)\)", PAGE)) <= set(anchors)


def test_the_figures_of_the_guide_are_those_of_the_server() -> None:
    """Sizes, times and counts, the names that health knows, and that reflection is off."""
    guide = " ".join(GUIDE.split())
    config = load({}, {"HOME": "/h"})
    mebi, kibi = 1024 * 1024, 1024
    for said in (
        f"{limits.MAX_REQUEST_BYTES // mebi} MiB for a request, {limits.MAX_TEXT_BYTES // kibi} KiB for a text",
        f"and {limits.MAX_RESPONSE_BYTES // mebi} MiB for an answer",
        f"limit of streams is {config.max_streams:,}",
        f"A heartbeat is sent after {limits.HEARTBEAT_SECONDS:.0f} s of silence",
        f"reads nothing for {limits.STALL_SECONDS:.0f} s while events wait",
        f"the server answers within {limits.ANSWER_SECONDS:.0f} s",
        f"listens on `{config.listen}`",
        'know the names `""`, ' + " and ".join(f"`{name}`" for name in SERVICES),
    ):
        assert said in guide
    assert "**Reflection** is off." in guide
    assert not config.reflection


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_the_table_of_refusals_has_every_reason_that_is_sent_and_nothing_else(contract: tuple[File, ...]) -> None:
    """With the code that the server sends it with, a cause and a remedy."""
    reasons = api_docs.reasons(contract)
    assert [reason.name for reason in reasons] == [reason.value for reason in Reason]
    assert {Reason(each.name): each.code for each in reasons} == {reason: code.name for reason, code in CODES.items()}
    assert {each.name for each in reasons} == set(_raised_reasons())
    rows = [row for row in table(section(PAGE, "## RefusalReason")) if len(row) == 4]
    assert [tuple(row) for row in rows] == [(f"`{each.name}`", each.code, each.cause, each.remedy) for each in reasons]
    assert all(cause and remedy for _, _, cause, remedy in rows)


def test_the_table_of_other_errors_has_every_code_that_the_server_sends_by_itself(contract: tuple[File, ...]) -> None:
    listed = {each.name: each for each in api_docs.other_errors(contract)}
    assert set(listed) == _plain_codes()
    rows = [row for row in table(section(PAGE, "## RefusalReason")) if len(row) == 3]
    assert [name.strip("`") for name, *_ in rows] == list(listed)
    assert all(each.cause and each.remedy for each in listed.values())


@pytest.mark.parametrize("reason", Reason)
def test_the_reason_is_reported_in_the_error_info(reason: Reason) -> None:
    status = status_of(Rejected(reason))
    info = ErrorInfo()
    assert status.details[0].Unpack(info)
    assert (info.reason, info.domain, status.code) == (reason.value, "bedrock.dev", CODES[reason].value[0])
    assert f'`domain` "{info.domain}"' in (ROOT / "docs" / "api" / "errors.md").read_text()


@pytest.mark.parametrize(
    ("error", "detail"),
    [
        (MalformedRequestError(("slug", "too long")), "google.rpc.BadRequest"),
        (Rejected(Reason.MODEL_UNAVAILABLE), "google.rpc.BadRequest"),
        (ConversationNotFoundError("conversations/x"), "google.rpc.ResourceInfo"),
        (Rejected(Reason.STORE_UNAVAILABLE), "google.rpc.RetryInfo"),
    ],
)
def test_the_other_details_come_where_the_guide_says(error: Exception, detail: str) -> None:
    assert detail in section(GUIDE, "# Errors and limits")
    assert detail in {each.TypeName() for each in status_of(error).details}


def _raised_reasons() -> Iterator[str]:
    """Every `Reason.X` in the code that is no key of a table and not compared with."""
    files = (*(ROOT / "actors").rglob("*.py"), *(ROOT / "server").rglob("*.py"))
    for tree in (ast.parse(text) for file in files if "Reason." in (text := file.read_text(encoding="utf-8"))):
        looked_up = {id(part) for node in ast.walk(tree) for part in _only_looked_up(node)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and id(node) not in looked_up and ast.unparse(node.value) == "Reason":
                yield node.attr


def _only_looked_up(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.Dict):
        yield from (key for key in node.keys if key is not None)
    elif isinstance(node, ast.Compare):
        yield from node.comparators
    elif isinstance(node, ast.Subscript):
        yield node.slice


def _plain_codes() -> set[str]:
    """Every gRPC code in server/contract/errors.py outside of the table of refusals, for errors of its own."""
    tree = ast.parse(Path(ROOT / "server" / "contract" / "errors.py").read_text(encoding="utf-8"))
    found: set[str] = set()
    for statement in tree.body:
        if isinstance(statement, ast.AnnAssign) and ast.unparse(statement.target) == "CODES":
            continue
        names = (node for node in ast.walk(statement) if isinstance(node, ast.Attribute))
        found |= {node.attr for node in names if ast.unparse(node.value) == "_Code"}
    return found


# --- what watchers are promised ---------------------------------------------------------------------------------------


def test_subscribe_states_its_promises(contract: tuple[File, ...]) -> None:
    calls = [call for file in contract for service in file.services for call in service.calls]
    (prose,) = (" ".join(call.comment.split()) for call in calls if call.name == "Subscribe")
    for promise in ("Durable", "Ordered", "Gap-free", "Unique", "Atomic", "Resumable", "Final", "Alive"):
        assert f"* {promise}: " in prose
    for said in (
        "after a broken connection or a restart of the server, subscribing after the last revision seen continues",
        "events that a client has not seen were pruned",
        "the memory for a watcher is bounded",
        "Deltas that wait are conflated",
        "A stream ends in one of these ways",
    ):
        assert said in prose
