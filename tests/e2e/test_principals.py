"""Two principals on one server, who attack each other through every call and field, and with their tools."""

import json
import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import jwt
import pytest
from bedrock import BedrockError, Client, Conversation, NotFound, Unauthenticated, v1
from bedrock.types import Mode
from cryptography.hazmat.primitives.asymmetric import ec
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from jwt.algorithms import ECAlgorithm

from server.auth.authorization import NEEDED
from server.auth.principals import Role
from tests.e2e.two_nodes import database_of
from tests.support import server_process
from tests.support.patience import PATIENCE
from tests.support.server_process import ServerProcess, Servers
from tests.unit.test_contract import all_methods

CALLS = int(os.environ.get("BEDROCK_FUZZED_CALLS", "200"))
"""How many random calls one principal makes on what belongs to another one."""
MARK = "what-only-ada-knows"
"""In everything that ada says, names and stores."""
KNOWN = "123e4567-e89b-42d3-a456-426614174000"
"""The id of a request of ada's."""
WIDER: tuple[Mode, ...] = ("workspace", "unrestricted")
MOMENT = 0.1
"""Seconds for which a stream is read."""
ISSUER = "https://id.example.com"
ISSUERS_KEY = ec.generate_private_key(ec.SECP256R1())
METHODS = {f"/{method.containing_service.full_name}/{method.name}": method for method in all_methods()}


@dataclass
class Both:
    """A server with two principals, ada and bob."""

    server: ServerProcess
    channel: grpc.Channel
    tokens: dict[str, str]
    talk: Conversation
    """A conversation of ada's."""

    @property
    def folder(self) -> Path:
        return self.server.folder

    def client(self, secret: str) -> Client:
        """A client with a token; to be closed."""
        return Client(self.server.address, token=secret, timeout=PATIENCE)

    def call(self, method: MethodDescriptor, request: Message, secret: str) -> tuple[str, bytes]:
        """The code and all bytes that a caller gets; a stream is read for a moment."""
        service = method.containing_service
        path = f"/{service.full_name}/{method.name}"
        kind: Any = self.channel.unary_stream if method.server_streaming else self.channel.unary_unary
        metadata = (("authorization", f"Bearer {secret}"),)
        try:
            answer = kind(path)(
                request.SerializeToString(), timeout=MOMENT if method.server_streaming else 5, metadata=metadata
            )
            return "OK", b"".join(answer) if method.server_streaming else answer
        except grpc.RpcError as error:
            known: Any = error
            return known.code().name, f"{known.details()} {known.trailing_metadata()}".encode()


def token(folder: Path, *arguments: str) -> str:
    return server_process.token(folder / "config.toml", folder / "data", *arguments, **database_of(folder))


def issued(subject: str, seconds: float, key: ec.EllipticCurvePrivateKey = ISSUERS_KEY) -> str:
    """A token of the issuer that is valid for so long."""
    claims = {"iss": ISSUER, "aud": "bedrock", "sub": subject, "exp": time.time() + seconds}
    return jwt.encode(claims, key, algorithm="ES256", headers={"kid": "one"})


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    folder = tmp_path_factory.mktemp("principals")
    for name in ("ada", "bob"):
        (folder / name).mkdir()
        (folder / name / f"what-only-{name}-knows").write_text(f"what-only-{name}-knows\n")
        (folder / name / "AGENTS.md").write_text(f"what-only-{name}-knows\n")
    (folder / "bob" / "link").symlink_to(folder / "ada")
    (folder / "config.toml").write_text(
        f'[principals.ada]\nroots = ["{folder / "ada"}"]\nmodels = ["demo"]\n'
        f'[principals.bob]\nroots = ["{folder / "bob"}"]\nmodels = ["d*"]\n'
        f'[issuers.corp]\nissuer = "{ISSUER}"\naudience = "bedrock"\njwks_file = "{folder / "jwks.json"}"\n'
        f'leeway_seconds = 0\nprincipals = {{ a = "ada" }}\ntemplate = {{ roots = ["{folder}/{{principal}}"] }}\n'
    )
    key = {**ECAlgorithm.to_jwk(ISSUERS_KEY.public_key(), as_dict=True), "kid": "one"}
    (folder / "jwks.json").write_text(json.dumps({"keys": [key]}))
    servers = Servers()
    server = servers(folder, "--config", str(folder / "config.toml"))
    with ExitStack() as opened:
        opened.callback(servers.close)
        tokens = {name: token(folder, "create", name) for name in ("ada", "bob")}
        ada = opened.enter_context(Client(server.address, token=tokens["ada"], timeout=PATIENCE))
        talk = ada.create(
            working_directory=str(folder / "ada"), title=MARK, labels={"mark": MARK}, slug="adas-talk", request_id=KNOWN
        )
        assert MARK in talk.ask(f"run cat {MARK}")
        channel = opened.enter_context(server.channel())
        yield Both(server, channel, tokens, talk)


@pytest.fixture
def bob(both: Both) -> Iterator[Client]:
    with both.client(both.tokens["bob"]) as client:
        yield client


# --- every call and field --------------------------------------------------------------------------------------------


def test_every_call_names_the_role_that_it_needs() -> None:
    assert NEEDED.keys() == METHODS.keys()


class Attacker:
    """Makes requests whose fields name what belongs to another principal."""

    def __init__(self, both: Both, seed: int) -> None:
        self._random = random.Random(seed)
        name, slug = both.talk.name, "conversations/adas-talk"
        message = next(iter(both.talk.messages())).name
        cycle = next(iter(both.talk.cycles())).name
        ada = str(both.folder / "ada")
        parts = ("messages/1", "requestCycles/1", "attachments/1", "approvals/1", "toolCalls/1", "approvalRules/1")
        self._texts = (
            name, slug, message, cycle, *(f"{name}/{part}" for part in parts), f"{slug}/messages/1", "conversations/-",
            "adas-talk", KNOWN, ada, f"{ada}/../ada", str(both.folder / "bob" / "link"), str(both.folder), "/", "",
            "labels:mark", f'working_directory:"{ada}"', "state = idle", "create_time desc", "models/demo",
            "tools/bash", "x", *self._page_tokens(both),
        )  # fmt: skip

    @staticmethod
    def _page_tokens(both: Both) -> Iterator[str]:
        """The page tokens that ada gets."""
        conversations = v1.ConversationServiceStub(both.channel)
        metadata = (("authorization", f"Bearer {both.tokens['ada']}"),)
        of_messages = v1.ListMessagesRequest(parent=both.talk.name, page_size=1)
        yield conversations.ListMessages(of_messages, metadata=metadata).next_page_token
        yield conversations.ListConversations(
            v1.ListConversationsRequest(page_size=1), metadata=metadata
        ).next_page_token

    def request(self, method: MethodDescriptor) -> Message:
        message = GetMessageClass(method.input_type)()
        self._fill(message, 0)
        return message

    def _fill(self, message: Message, depth: int) -> None:
        for field in message.DESCRIPTOR.fields:
            if depth and self._random.random() < 0.5:
                continue
            if field.message_type is not None and field.message_type.full_name.startswith("google.protobuf."):
                continue
            if field.is_repeated:
                if field.message_type is None:
                    getattr(message, field.name).append(self._value(field))
            elif field.message_type is not None:
                if depth < 2:
                    self._fill(getattr(message, field.name), depth + 1)
            else:
                setattr(message, field.name, self._value(field))

    def _value(self, field: Any) -> Any:
        match field.cpp_type:
            case FieldDescriptor.CPPTYPE_STRING if field.type == FieldDescriptor.TYPE_BYTES:
                return b"x"
            case FieldDescriptor.CPPTYPE_STRING:
                return self._random.choice(self._texts)
            case FieldDescriptor.CPPTYPE_BOOL:
                return self._random.random() < 0.5
            case FieldDescriptor.CPPTYPE_ENUM:
                assert field.enum_type is not None
                return self._random.choice(field.enum_type.values).number
            case _:
                return self._random.choice((0, 1, 2, 50))


def test_nothing_of_another_principal_comes_through_any_call(both: Both) -> None:
    attacker, chosen = Attacker(both, seed=CALLS), random.Random(CALLS)
    before = both.talk.get()
    codes: dict[str, set[str]] = {}
    for _ in range(CALLS):
        path = chosen.choice(sorted(METHODS))
        request = attacker.request(METHODS[path])
        code, told = both.call(METHODS[path], request, both.tokens["bob"])
        codes.setdefault(path, set()).add(code)
        assert MARK.encode() not in told, (path, request, told)
        assert code not in {"INTERNAL", "UNKNOWN", "DATA_LOSS"}, (path, request, told)
    assert both.talk.get() == before
    if 20 * len(METHODS) <= CALLS:
        assert "NOT_FOUND" in set().union(*codes.values())


@pytest.mark.parametrize("path", [path for path in METHODS if "ConversationService/" in path])
def test_what_belongs_to_another_principal_does_not_exist(both: Both, path: str) -> None:
    """Each call that names a conversation: by id, by slug, by what is in it."""
    method = METHODS[path]
    kind = GetMessageClass(method.input_type)
    field = next((name for name in ("name", "parent", "conversation") if name in kind.DESCRIPTOR.fields_by_name), None)
    if field is None or method.name == "CreateConversation":
        return
    of_talk = {
        "WithdrawMessage": "/messages/1", "GetMessage": "/messages/1", "DownloadAttachment": "/attachments/1",
        "GetAttachment": "/attachments/1", "ResolveApproval": "", "GetRequestCycle": "/requestCycles/1",
    }  # fmt: skip
    request = kind()
    name = f"{both.talk.name}{of_talk.get(method.name, '')}"
    if kind.DESCRIPTOR.fields_by_name[field].message_type is not None:
        getattr(request, field).name = name
    else:
        setattr(request, field, name)
    code, told = both.call(method, request, both.tokens["bob"])
    refusals = {"PERMISSION_DENIED"} if NEEDED[path] is Role.OPERATOR else {"NOT_FOUND", "INVALID_ARGUMENT"}
    assert code in refusals, told
    assert MARK.encode() not in told


def test_the_own_user_of_the_server_sees_none_of_their_conversations(both: Both) -> None:
    """Its tools and files are the operator's; the conversations of principals are theirs."""
    with both.client(both.server.token) as own:
        assert list(own.conversations()) == []
        with pytest.raises(BedrockError, match="does not exist"):
            own.conversation(both.talk.name).get()


def test_a_slug_of_another_principal_is_free(both: Both, bob: Client) -> None:
    talk = bob.create(working_directory=str(both.folder / "bob"), slug="adas-talk")
    assert bob.conversation("adas-talk").get().name == talk.name
    with pytest.raises(BedrockError, match="slug adas-talk is already taken"):
        bob.create(working_directory=str(both.folder / "bob"), slug="adas-talk")
    talk.delete()


# --- what tools and the server read ----------------------------------------------------------------------------------


def test_tools_of_one_principal_read_nothing_of_another_one(both: Both, bob: Client) -> None:
    talk = bob.create(working_directory=str(both.folder / "bob"))
    ada = both.folder / "ada"
    tried = f"cat {ada}/*", f"ls {ada}", "cat link/*", f"find {both.folder}", "cat ../ada/*", "cat /proc/*/cwd/*"
    assert MARK not in talk.ask(f"run {'; '.join(tried)}")
    assert MARK not in talk.ask(f"read {ada}/AGENTS.md")


def test_no_conversation_begins_where_another_principal_works(both: Both, bob: Client) -> None:
    for place in ("ada", "bob/link", "bob/../ada", "missing"):
        with pytest.raises(BedrockError, match="outside this principal's directories") as refusal:
            bob.create(working_directory=str(both.folder / place))
        assert refusal.value.reason == "WORKING_DIRECTORY_INVALID"


def test_directories_are_browsed_within_the_roots_only(both: Both, bob: Client) -> None:
    assert [entry.name for entry in bob.browse().entries] == ["AGENTS.md", "what-only-bob-knows"]
    for place in ("ada", "", "bob/link"):
        with pytest.raises(BedrockError, match="outside this principal's directories"):
            bob.browse(str(both.folder / place))


def test_only_the_mode_that_keeps_principals_apart_is_given(both: Both, bob: Client) -> None:
    talk = bob.create(working_directory=str(both.folder / "bob"))
    assert talk.get().mode == "restricted"
    for mode in WIDER:
        with pytest.raises(BedrockError, match="this principal is not allowed to use it") as refusal:
            talk.set_mode(mode)
        assert refusal.value.reason == "MODE_UNAVAILABLE"
        with pytest.raises(BedrockError, match="this principal is not allowed to use it"):
            bob.create(working_directory=str(both.folder / "bob"), mode=mode)
    assert not bob.server_info().sandbox.workspace_available


def test_models_beyond_the_permissions_are_neither_listed_nor_used(both: Both, bob: Client) -> None:
    assert [model.name for model in bob.models()] == ["models/demo"]
    with pytest.raises(BedrockError, match="is not allowed to use model") as refusal:
        bob.create(working_directory=str(both.folder / "bob"), model="claude-sonnet-4-5")
    assert refusal.value.reason == "MODEL_UNAVAILABLE"


# --- tokens and roles ------------------------------------------------------------------------------------------------


def test_a_reader_looks_and_changes_nothing(both: Both) -> None:
    secret = token(both.folder, "create", "ada", "--role", Role.READER)
    with both.client(secret) as reader:
        talk = reader.conversation(both.talk.name)
        assert talk.get().title == MARK
        assert list(talk.messages())
        for path, needed in NEEDED.items():
            if needed is Role.READER:
                continue
            method = METHODS[path]
            code, told = both.call(method, GetMessageClass(method.input_type)(), secret)
            assert code == "PERMISSION_DENIED", (path, told)
            assert b"role, reader," in told


@pytest.mark.parametrize("command", ["revoke", "rotate"])
def test_revoking_or_rotating_a_token_ends_its_streams_and_refuses_its_calls(both: Both, command: str) -> None:
    secret = token(both.folder, "create", "ada")
    number = secret.split("_")[1]
    with both.client(secret) as client:
        talk = client.conversation(both.talk.name)
        seen, ended = threading.Event(), list[BaseException]()

        def follow() -> None:
            try:
                for _ in talk.events():
                    seen.set()
            except BedrockError as error:
                ended.append(error)

        thread = threading.Thread(target=follow)
        thread.start()
        assert seen.wait(PATIENCE)
        assert number in token(both.folder, "list")
        token(both.folder, command, number)
        thread.join(PATIENCE)
        assert not thread.is_alive()
        assert isinstance(ended[0], Unauthenticated)
        with pytest.raises(Unauthenticated):
            talk.get()
    assert (number in token(both.folder, "list")) == (command == "rotate")
    assert both.talk.get().title == MARK


def test_a_token_of_an_issuer_opens_what_belongs_to_its_principal(both: Both) -> None:
    with both.client(issued("a", 600)) as ada:
        assert ada.conversation(both.talk.name).get().title == MARK
    for stranger in ("ada", "zoë"):
        with both.client(issued(stranger, 600)) as client:
            assert list(client.conversations()) == []
            with pytest.raises(NotFound):
                client.conversation(both.talk.name).get()
            with pytest.raises(BedrockError, match="outside this principal's directories"):
                client.create(working_directory=str(both.folder / "bob"))


def test_no_call_takes_a_token_that_is_not_the_issuers(both: Both) -> None:
    forged = issued("a", 600, ec.generate_private_key(ec.SECP256R1()))
    for method in METHODS.values():
        code, told = both.call(method, GetMessageClass(method.input_type)(), forged)
        assert (code, MARK.encode() in told) == ("UNAUTHENTICATED", False), method.name


def test_the_end_of_an_issuers_token_ends_its_streams(both: Both) -> None:
    with both.client(issued("a", 3)) as client, pytest.raises(Unauthenticated):
        for _ in client.conversation(both.talk.name).events():
            pass


@pytest.mark.one_server("it looks into the data directory")
def test_no_secret_is_stored_or_logged(both: Both) -> None:
    secrets = [text.split("_", 2)[2] for text in both.tokens.values()]
    stored = (both.folder / "data" / "tokens.json").read_text()
    assert (both.folder / "data" / "tokens.json").stat().st_mode & 0o777 == 0o600
    for secret in secrets:
        assert secret not in stored
        assert secret not in both.server.log_text()
