"""Every reason of the contract is an exception of its own, with what the server said about it."""

import inspect

import grpc
import pytest
from bedrock import Client, errors, v1
from bedrock._shared import reconnection as status
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2

from tests.support.fake_server import FakeBedrock, Refusal

REASONS = [name.removeprefix("REFUSAL_REASON_") for name, number in v1.RefusalReason.items() if number]


@pytest.mark.parametrize("reason", REASONS)
def test_every_reason_has_a_class_named_like_it(reason: str) -> None:
    found = errors.error_class(reason, "")
    assert found.__name__ == "".join(word.capitalize() for word in reason.split("_"))


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
def test_every_code_becomes_an_error_of_ours(code: grpc.StatusCode, client: Client, fake: FakeBedrock) -> None:
    fake.refuse("CancelConversation", Refusal(code, "SOMETHING_NEW", "no"))
    with pytest.raises(errors.BedrockError, match=r"no$|rejects the token") as caught:
        client.conversation("c1").cancel()
    assert (caught.value.code, caught.value.reason) == (code.name, "SOMETHING_NEW")
    assert type(caught.value) is errors.error_class("", code.name)


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    def tree(cls: type[errors.BedrockError], indent: str) -> list[str]:
        children = sorted(cls.__subclasses__(), key=lambda child: child.__name__)
        lines = []
        for child in children:
            last = child is children[-1]
            lines.append(f"{indent}{'└── ' if last else '├── '}{child.__name__}")
            lines += tree(child, indent + ("    " if last else "│   "))
        return lines

    assert errors.__doc__ is not None
    drawn = [line[4:] for line in errors.__doc__.splitlines() if "── " in line]
    assert [line.split("  ", 1)[0] if "──" in line.split("  ", 1)[0] else line for line in map(_name_only, drawn)] == (
        tree(errors.BedrockError, "")
    )


def _name_only(line: str) -> str:
    head, _, name = line.partition("── ")
    return f"{head}── {name.split(' ')[0]}"


def test_all_exceptions_are_documented() -> None:
    classes = [
        name for name, member in vars(errors).items() if inspect.isclass(member) and issubclass(member, Exception)
    ]
    assert classes
    assert all(getattr(errors, name).__doc__ for name in classes)


def test_field_violations_are_named(client: Client, fake: FakeBedrock) -> None:
    violation = error_details_pb2.BadRequest.FieldViolation(field="model", description="is not served")
    fake.refuse(
        "CreateConversation",
        Refusal(
            grpc.StatusCode.INVALID_ARGUMENT,
            "MODEL_UNAVAILABLE",
            "no such model",
            [error_details_pb2.BadRequest(field_violations=[violation])],
        ),
    )
    with pytest.raises(errors.ModelUnavailable) as caught:
        client.create("/tmp", model="nope")
    assert caught.value.fields == {"model": "is not served"}
    assert "bedrock models" in caught.value.hint


def test_metadata_and_retry_delay_are_kept(client: Client, fake: FakeBedrock) -> None:
    fake.refuse(
        "SetMode",
        Refusal(
            grpc.StatusCode.UNAVAILABLE,
            "STORE_UNAVAILABLE",
            "the disk is full",
            [error_details_pb2.RetryInfo(retry_delay=Duration(seconds=1, nanos=500_000_000))],
        ),
    )
    with pytest.raises(errors.StoreUnavailable, match="disk is full") as caught:
        client.conversation("c1").set_mode("restricted")
    assert caught.value.retry_after == 1.5
    assert isinstance(caught.value, errors.Unavailable)


def test_foreign_details_are_not_taken_for_reasons(client: Client, fake: FakeBedrock) -> None:
    foreign = error_details_pb2.ErrorInfo(reason="AGENT_BUSY", domain="example.com")
    fake.refuse("SetMode", Refusal(grpc.StatusCode.INTERNAL, "", "a proxy says no", [foreign]))
    with pytest.raises(errors.Internal) as caught:
        client.conversation("c1").set_mode("restricted")
    assert caught.value.reason == ""


def test_an_unreachable_server_is_named() -> None:
    with Client("127.0.0.1:1") as client, pytest.raises(errors.Unavailable, match=r"127\.0\.0\.1:1"):
        client.conversation("c1").cancel()


def test_a_server_without_tls_says_that_tls_is_the_trouble(address: str) -> None:
    with Client(f"https://{address}") as client, pytest.raises(errors.Unavailable, match="the TLS handshake failed"):
        client.conversation("c1").cancel()


def test_of_a_chain_of_causes_the_last_one_is_reported() -> None:
    chain = "errors resolving nowhere:1: [field:hostname lookup error:lookup failed: Domain name not found]"
    assert status.cause_of(chain) == "Domain name not found"


def test_reads_are_tried_again_and_writes_without_an_id_are_not(client: Client, fake: FakeBedrock) -> None:
    for method in ("GetConversation", "CancelConversation"):
        fake.refuse(method, Refusal(grpc.StatusCode.UNAVAILABLE, "", "gone for a moment"))
    assert client.conversation("c1").get().slug
    with pytest.raises(errors.Unavailable):
        client.conversation("c1").cancel()
    assert len(fake.asked(v1.GetConversationRequest)) == 2
    assert len(fake.asked(v1.CancelConversationRequest)) == 1


def test_damage_is_reported_at_once_and_not_tried_again(client: Client, fake: FakeBedrock) -> None:
    fake.refuse("GetConversation", Refusal(grpc.StatusCode.DATA_LOSS, "DATA_LOSS", "damaged"))
    with pytest.raises(errors.DataLoss, match="damaged"):
        client.conversation("c1").get()
    assert len(fake.asked(v1.GetConversationRequest)) == 1


def test_a_busy_agent_is_never_asked_again_by_itself(client: Client, fake: FakeBedrock) -> None:
    fake.refuse("SendMessage", Refusal(grpc.StatusCode.FAILED_PRECONDITION, "AWAITING_APPROVAL", "agent is busy"))
    with pytest.raises(errors.AgentBusy) as caught:
        client.conversation("c1").send("Hi")
    assert type(caught.value) is errors.AwaitingApproval
    assert len(fake.asked(v1.SendMessageRequest)) == 1


def test_what_does_not_exist_is_named_apart_from_the_message(client: Client) -> None:
    with pytest.raises(errors.NotFound) as caught:
        client.conversation("nope").get()
    assert caught.value.resource == "conversations/nope"
