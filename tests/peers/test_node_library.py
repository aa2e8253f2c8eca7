"""The Node client's library: its errors, its runs, and what it makes of streams that break, repeat and overlap."""

import base64
import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from bedrock import v1
from bedrock.testing.plays import calls

from tests.documents.pages import fenced
from tests.peers import installed
from tests.peers.conftest import Node
from tests.peers.node_chat import run_module, run_script
from tests.support.fake_provider import FakeProvider, says, stalls
from tests.support.fake_server import FakeBedrock, FakeServer, asks_person, delta, discarded, stopped, stored
from tests.support.patience import PATIENCE
from tests.support.pictures import png
from tests.support.scripted_server import ScriptedServer, answer
from tests.support.server_process import ServerProcess

Script = Callable[..., Any]
Play = Callable[["Streams"], list[list[Any]]]


@pytest.fixture
def script(node: Node, tmp_path: Path) -> Script:
    return partial(run_script, node, tmp_path)


@pytest.fixture
def fake() -> FakeBedrock:
    return FakeBedrock()


@pytest.fixture
def address(fake: FakeBedrock) -> Iterator[str]:
    server = FakeServer(fake)
    yield server.address
    server.stop()


def test_the_example_of_its_page_does_what_it_says(node: Node, server: ServerProcess, tmp_path: Path) -> None:
    page = (installed.NODE_CLIENT / "README.md").read_text(encoding="utf-8")
    said = run_module(node, tmp_path, fenced(page, "client"), BEDROCK_DATA_DIR=str(server.data))
    assert "bash answered with " in said
    assert said.endswith("STOP_REASON_COMPLETED\n")


def test_functions_are_tools_and_answer_their_calls(
    script: Script, scripted: ServerProcess, fake_provider: FakeProvider, tmp_path: Path
) -> None:
    given = {"number": 7, "tags": ["a", None, {"deep": True}]}
    part = fake_provider.part(
        calls(("find_order", given), ("find_order", {"number": 0})), calls(("look", {})), says("Done.")
    )
    told = script(
        f"""
        const png = Buffer.from('{base64.b64encode(png()).decode()}', 'base64');
        const images = [{{ mediaType: 'image/png', data: png }}];
        const bedrock = new Bedrock();
        const workingDirectory = {json.dumps(str(tmp_path))};
        const made = await bedrock.create({{ workingDirectory, mode: 'MODE_UNRESTRICTED' }});
        const inputs = [];
        made.tool(
          {{ name: 'find_order', description: 'Finds it.', inputSchema: {{ type: 'object', required: ['number'] }} }},
          (input) => {{
            inputs.push(input);
            if (!input.number) throw new RangeError('there is no order 0');
            return {{ number: input.number, state: 'open' }};
          }},
        );
        made.tool({{ name: 'look', readOnly: true }}, async () => new ToolAnswer('a picture', images));
        const serving = made.serveTools();
        for await (const _ of await made.send('Go. {part.key}'));
        const results = [];
        for await (const {{ content }} of made.messages()) {{
          const ended = content.map(({{ toolResult }}) => toolResult).filter((each) => each);
          results.push(...ended.map(({{ output, images }}) => [output, images.length]));
        }}
        const {{ conversation }} = await bedrock.call('getConversation', {{ name: made.name }});
        const facts = ({{ name, readOnly, timeout }}) => [name, readOnly, timeout.seconds];
        const tools = conversation.clientTools.map(facts);
        await bedrock.call('deleteConversation', {{ name: made.name }});
        await serving;
        const restricted = {{ workingDirectory, mode: 'MODE_RESTRICTED' }};
        const refused = (call) => call.then(() => null, ({{ reason }}) => reason);
        const clientTools = [{{ name: 'ship' }}];
        const narrow = await bedrock.create({{ ...restricted, clientTools, allowUnoffered: true }});
        const lost = await narrow.tool({{ name: 'cancel' }}, () => '').get();
        const unoffered = [
          await refused(bedrock.create({{ ...restricted, clientTools }})),
          await refused(narrow.update({{ clientTools }})),
          await refused(narrow.send('Go.')), lost.unofferedTools.map(({{ name, reason }}) => [name, reason]),
        ];
        console.log(JSON.stringify({{ inputs, results, tools, unoffered }}));
        process.exit();
        """,
        BEDROCK_DATA_DIR=str(scripted.data),
    )
    assert told["inputs"] == [given, {"number": 0}], "each call is answered once, although two loops see it"
    found, missing, seen = told["results"]
    assert json.loads(found[0]) == {"number": 7, "state": "open"}
    assert "RangeError: there is no order 0" in missing[0]
    assert seen == ["a picture", 1]
    assert told["tools"] == [["find_order", False, 300], ["look", True, 300]]
    assert told["unoffered"] == [*["TOOL_NOT_OFFERED"] * 3, [["ship", "REASON_MODE"]]]


def test_refusals_are_errors_with_reasons_and_fields(
    script: Script, scripted: ServerProcess, fake_provider: FakeProvider, tmp_path: Path
) -> None:
    part = fake_provider.part(stalls)
    told = script(
        f"""
        const bedrock = new Bedrock();
        const facts = ({{ code, reason, fields }}) => ({{ code, reason, fields }});
        const refused = (call) => call.then(() => null, facts);
        const conversation = await bedrock.create({{ workingDirectory: {json.dumps(str(tmp_path))} }});
        await conversation.send('Hi. {part.key}');
        const told = [
          await refused(conversation.send('And?')),
          await refused(bedrock.create({{ workingDirectory: '/nowhere', slug: '-' }})),
          await refused(bedrock.create({{ workingDirectory: '/nowhere' }})),
          await refused(new Bedrock({{ token: 'wrong' }}).call('listModels', {{}})),
          await refused(new Bedrock({{ address: '127.0.0.1:1' }}).call('listModels', {{}})),
        ];
        await conversation.cancel();
        const listed = async (fields) => {{
          const found = [];
          for await (const each of bedrock.conversations(fields)) found.push(each.name);
          return found;
        }};
        told.push(await listed({{ filter: 'working_directory = "/"' }}));
        told.push((await listed({{ pageSize: 1 }})).includes(conversation.name));
        console.log(JSON.stringify(told));
        process.exit();
        """,
        BEDROCK_DATA_DIR=str(scripted.data),
    )
    busy, malformed, directory, stranger, nobody, elsewhere, everywhere = told
    assert (elsewhere, everywhere) == ([], True)
    assert (busy["code"], busy["reason"]) == ("FAILED_PRECONDITION", "AGENT_BUSY")
    assert (malformed["code"], malformed["reason"]) == ("INVALID_ARGUMENT", "INVALID_ARGUMENT")
    assert "lower-case" in malformed["fields"]["conversation.slug"]
    assert (directory["reason"], list(directory["fields"])) == (
        "WORKING_DIRECTORY_INVALID",
        ["conversation.working_directory"],
    )
    assert stranger["reason"] == "UNAUTHENTICATED"
    assert (nobody["code"], nobody["reason"]) == ("UNAVAILABLE", "")


def test_conversations_are_watched_waited_for_changed_and_deleted(
    script: Script, scripted: ServerProcess, fake_provider: FakeProvider, tmp_path: Path
) -> None:
    part = fake_provider.part(stalls)
    told = script(
        f"""
        const bedrock = new Bedrock();
        const conversation = await bedrock.create({{ workingDirectory: {json.dumps(str(tmp_path))} }});
        const {{ etag }} = await conversation.get();
        const {{ title }} = await conversation.update({{ title: 'Watched', labels: {{ team: 'docs' }}, etag }});
        const outdated = await conversation.delete({{ etag }}).then(() => '', ({{ code }}) => code);
        const seen = [];
        const filter = 'labels.team = docs';
        const watching = (async () => {{
          for await (const entry of bedrock.watchConversations({{ filter }})) {{
            seen.push(entry.event);
            if (entry.event === 'caughtUp') await conversation.update({{ labels: {{}} }});
            if (entry.event === 'conversationUnmatched') return;
          }}
        }})();
        await watching;
        const run = await conversation.send('Hi. {part.key}');
        const early = await conversation.waitForCycle(run.name, {{ timeout: 0 }});
        const waiting = conversation.waitForCycle(run.name, {{ view: 'VIEW_ROUNDS' }});
        await conversation.cancel();
        const cycle = await waiting;
        const again = await conversation.cycle(run.name, {{ view: 'VIEW_ROUNDS' }});
        const asked = [];
        for await (const each of bedrock.approvals()) asked.push(each);
        for await (const each of bedrock.questions()) asked.push(each);
        const models = [];
        for await (const each of bedrock.models()) models.push((await bedrock.model(each.name)).name === each.name);
        await conversation.delete({{ etag: (await conversation.get()).etag }});
        const gone = await conversation.get().then(() => '', ({{ reason }}) => reason);
        const same = JSON.stringify(again) === JSON.stringify(cycle);
        const ended = [early.endTime, cycle.stopReason, same];
        console.log(JSON.stringify([title, outdated, seen, ...ended, asked, models, gone]));
        process.exit();
        """,
        BEDROCK_DATA_DIR=str(scripted.data),
    )
    title, outdated, seen, early, ended, same, asked, models, gone = told
    assert (title, outdated, gone) == ("Watched", "ABORTED", "NOT_FOUND")
    assert seen == ["conversationChanged", "caughtUp", "conversationUnmatched"]
    assert (early, ended, same, asked) == (None, "STOP_REASON_INTERRUPTED", True, [])
    assert models
    assert all(models)


def test_nodes_are_listed_over_all_pages(script: Script, fake: FakeBedrock, address: str) -> None:
    fake.nodes = [
        v1.Node(incarnation=1, name="one", address="10.0.0.1:7421", answering=True),
        v1.Node(incarnation=2, name="two", draining=True, active_conversations=3),
    ]
    body = f"""
        const bedrock = new Bedrock({{ address: '{address}', token: 'secret' }});
        const nodes = [];
        for await (const each of bedrock.nodes()) nodes.push(each);
        console.log(JSON.stringify(nodes));
        process.exit();
    """
    one, two = script(body)
    assert (one["incarnation"], one["name"], one["address"], one["answering"]) == (1, "one", "10.0.0.1:7421", True)
    assert (two["draining"], two["activeConversations"], two["answering"]) == (True, 3, False)


def test_a_server_of_this_machine_is_reached_without_the_proxy_and_an_error_names_it(
    script: Script, fake: FakeBedrock, address: str
) -> None:
    with ScriptedServer(answer(403, b"")) as proxy:
        body = f"""
            const near = new Bedrock({{ address: '{address}', token: 'secret' }});
            let models = 0;
            for await (const each of near.models()) models += Boolean(each);
            const far = new Bedrock({{ address: 'http://bedrock.example', token: '' }});
            const error = await far.models().next().catch((error) => error);
            console.log(JSON.stringify([models, error.code, error.message]));
            process.exit();
        """
        models, code, message = script(body, http_proxy=proxy.url.replace("//", "//me:secret-word@"))
    assert (models, code) == (len(fake.models), "UNAVAILABLE")
    assert f"(through the proxy {proxy.url.removeprefix('http://')} of http_proxy)" in message
    assert "secret-word" not in message
    assert {request.path for request in proxy.received} == {"bedrock.example:7421"}


def test_quotas_are_told_with_what_is_used(script: Script, fake: FakeBedrock, address: str) -> None:
    fake.quotas = [v1.Quota(principal="ada", quota="concurrent_runs", limit=2, used=1)]
    body = f"""
        const bedrock = new Bedrock({{ address: '{address}', token: 'secret' }});
        console.log(JSON.stringify(await bedrock.quotas()));
        process.exit();
    """
    (told,) = script(body)
    assert told == {"principal": "ada", "quota": "concurrent_runs", "limit": 2, "used": 1, "resetTime": None}


WRONG = {
    "conversation.approvalPolicy": (
        "create({ approvalPolicy: 'APPROVAL_POLICY_ASK_WRITE' })",
        "APPROVAL_POLICY_ASK_WRITES",
    ),
    "conversation.mode": ("create({ mode: 'restricted' })", "MODE_RESTRICTED, MODE_UNRESTRICTED"),
    "conversation.followUpPolicy": (
        "call('updateConversation', { conversation: { followUpPolicy: null } })",
        "null is not one of",
    ),
    "conversation.title": ("create({ title: null })", "null is not a string"),
    "conversation.labels": ("create({ labels: null })", "null is not an object"),
    "conversation.aproval": ("create({ aproval: 1 })", "approvalPolicy"),
    "conversation.budget.runTokens": ("create({ budget: { runTokens: 'abc' } })", "whole number"),
    "conversation.budget.tokens": ("create({ budget: { tokens: 1 } })", "conversationTokens"),
    "conversation.labels.a": ("create({ labels: { a: 1 } })", "string"),
    "delivery": ("conversation('conversations/c').send('Hi', { delivery: 'STEER' })", "DELIVERY_STEER"),
    "images[0].mime": ("conversation('conversations/c').send('Hi', { images: [{ mime: 'a/b' }] })", "mediaType"),
    "onApproval": ("conversation('conversations/c').send('Hi', { onApproval: 'approve' })", "APPROVE, DENY"),
    "discardQueued": ("conversation('conversations/c').cancel({ discardQueued: 'false' })", "true or false"),
    "onQuestion": ("conversation('conversations/c').send('Hi', { onQuestion: 'no' })", "is not a function"),
    "decision": ("conversation('conversations/c').resolve({ name: 'n' }, 'APROVE')", "APPROVAL_DECISION_APPROVE"),
    "tasks[0].timeout.second": (
        "call('spawnSubAgents', { name: 'n', tasks: [{ task: 't', timeout: { second: 1 } }] })",
        "seconds, nanos",
    ),
    "start": ("call('subscribe', { name: 'n', afterRevision: 1, recentMessages: 1 })", "are mutually exclusive"),
    "method": ("call('creatConversation', {})", "creatConversation"),
}
"""What cannot be sent, by the field that is wrong, and a part of what is said about it."""


def test_what_is_misspelt_is_an_error_that_lists_what_exists(script: Script) -> None:
    """And nothing is sent: nobody listens at this address."""
    body = """
        const bedrock = new Bedrock({ address: '127.0.0.1:1', token: 'x' });
        const told = [];
        const attempt = async (call) => call();
        for (const call of [%s]) {
          told.push(await attempt(call).then(() => null, ({ reason, fields }) => ({ reason, fields })));
        }
        const misspelt = attempt(() => new Bedrock({ adress: 'x' }));
        told.push(await misspelt.catch(({ reason, fields }) => ({ reason, fields })));
        console.log(JSON.stringify(told));
    """
    told = script(body % ", ".join(f"() => bedrock.{call}" for call, _ in WRONG.values()))
    assert [each["reason"] for each in told] == ["INVALID_ARGUMENT"] * (len(WRONG) + 1)
    for each, (field, (_, said)) in zip(told, WRONG.items(), strict=False):
        assert list(each["fields"]) == [field]
        assert said in each["fields"][field]
    assert list(told[-1]["fields"]) == ["adress"]


def test_undefined_is_not_given(script: Script, server: ServerProcess, tmp_path: Path) -> None:
    body = f"""
        const conversation = await new Bedrock().create({{
          workingDirectory: {json.dumps(str(tmp_path))}, approvalPolicy: undefined, title: undefined, labels: undefined,
        }});
        console.log(JSON.stringify(conversation.name));
    """
    assert script(body, BEDROCK_DATA_DIR=str(server.data)).startswith("conversations/")


def test_a_relative_data_directory_is_refused(script: Script) -> None:
    body = """
        const facts = ({ reason, message }) => ({ reason, message });
        const refused = await (async () => new Bedrock())().then(() => null, facts);
        console.log(JSON.stringify(refused));
    """
    told = script(body, BEDROCK_DATA_DIR="state")
    assert told["reason"] == "MISCONFIGURED"
    assert told["message"] == "BEDROCK_DATA_DIR: must be an absolute path, or begin with ~ (it is 'state')"


def test_no_question_hangs_a_loop(script: Script, server: ServerProcess, tmp_path: Path) -> None:
    body = f"""
        const bedrock = new Bedrock();
        const outcome = async (options) => {{
          const conversation = await bedrock.create({{
            workingDirectory: {json.dumps(str(tmp_path))}, approvalPolicy: 'APPROVAL_POLICY_ASK_ALL',
          }});
          const decisions = [];
          for await (const {{ approvalChanged }} of await conversation.send('run echo a', options)) {{
            if (approvalChanged) decisions.push(approvalChanged.decision, approvalChanged.note);
            if (options.waitForOthers && approvalChanged && decisions.length === 2) {{
              setTimeout(() => conversation.resolve(approvalChanged.approval, 'APPROVE', 'later'), 300);
            }}
          }}
          return decisions.slice(2);
        }};
        console.log(JSON.stringify([
          await outcome({{}}),
          await outcome({{ onApproval: 'APPROVE' }}),
          await outcome({{ onApproval: async ({{ toolCall }}) => toolCall.tool !== 'bash' }}),
          await outcome({{ waitForOthers: true }}),
          await outcome({{ onApproval: () => 'no' }}).catch((error) => [error.message]),
        ]));
        bedrock.close();
    """
    denied, approved, asked, left, neither = script(body, BEDROCK_DATA_DIR=str(server.data))
    assert denied[0] == "APPROVAL_DECISION_DENY"
    assert "without answering" in denied[1]
    assert approved == ["APPROVAL_DECISION_APPROVE", ""]
    assert asked == ["APPROVAL_DECISION_DENY", ""]
    assert left == ["APPROVAL_DECISION_APPROVE", "later"]
    assert neither == ["onApproval returned no, neither true nor false"]


def test_what_a_tool_asks_hangs_no_loop(script: Script, fake: FakeBedrock, address: str) -> None:
    """Each run is answered in another way; the address is the one that a function visits."""
    ways = {
        "{}": ("STATUS_DECLINED", {}),
        "{ onQuestion: async ({ message }) => ({ branch: message }) }": (
            "STATUS_ANSWERED",
            {"branch": "Which branch?"},
        ),
        "{ onQuestion: () => null }": ("STATUS_DECLINED", {}),
        "{ waitForOthers: true, self: 'answerQuestion' }": ("STATUS_ANSWERED", {"branch": "main"}),
        "{ waitForOthers: true, self: 'declineQuestion' }": ("STATUS_DECLINED", {}),
        "{ onQuestion: () => true }": ("onQuestion returned true, neither an object nor null", None),
    }
    body = f"""
        const bedrock = new Bedrock({{ address: '{address}', token: 'secret' }});
        const conversation = bedrock.conversation('conversations/c1');
        const outcome = async ({{ self, ...options }}) => {{
          let ended = '';
          for await (const {{ questionChanged }} of await conversation.send('Use it', options)) {{
            const question = questionChanged?.question;
            ended = question?.status ?? ended;
            if (self && ended === 'STATUS_PENDING' && question) {{
              const {{ status }} = await conversation[self](question, {{ branch: 'main' }});
              if (status === ended) throw new Error('it still waits');
            }}
          }}
          return ended;
        }};
        console.log(JSON.stringify(await outcome(%s).catch((error) => error.message)));
        bedrock.close();
    """
    for way, (ended, content) in ways.items():
        fake.over.clear()
        fake.requests.clear()
        fake.answers.append(asks_person())
        assert script(body % way) == ended, way
        replies = fake.asked(v1.AnswerQuestionRequest)
        assert [dict(each.content) for each in replies] == ([] if content is None else [content]), way


def test_a_follow_up_is_shown_to_the_end_of_its_own_run(
    script: Script, scripted: ServerProcess, fake_provider: FakeProvider, tmp_path: Path
) -> None:
    """Beyond the end of the run that it waited for."""
    part = fake_provider.part(stalls, says("Two."))
    body = f"""
        const bedrock = new Bedrock();
        const conversation = await bedrock.create({{ workingDirectory: {json.dumps(str(tmp_path))} }});
        for await (const {{ textDelta }} of await conversation.send('Hi. {part.key}')) if (textDelta) break;
        const run = await conversation.send('And?', {{ delivery: 'DELIVERY_FOLLOW_UP' }});
        await conversation.cancel();
        let said = '';
        const stops = [];
        for await (const {{ textDelta, runStopped }} of run) {{
          said += textDelta?.text ?? '';
          if (runStopped) stops.push(runStopped.reason);
        }}
        const history = [];
        for await (const {{ role, content }} of conversation.messages()) {{
          if (role !== 'ROLE_SYSTEM') history.push(content[0].text);
        }}
        console.log(JSON.stringify({{ said, history, stops, disposition: run.disposition }}));
        bedrock.close();
    """
    told = script(body, BEDROCK_DATA_DIR=str(scripted.data))
    assert told["said"].endswith("Two.")
    assert told["history"] == [f"Hi. {part.key}", "And?", "Two."]
    assert told["stops"] == ["STOP_REASON_INTERRUPTED", "STOP_REASON_COMPLETED"]
    assert told["disposition"] == "DISPOSITION_FOLLOW_UP_QUEUED"


def test_a_revision_that_cannot_be_resumed_from_leads_to_a_snapshot(
    script: Script, server: ServerProcess, tmp_path: Path
) -> None:
    body = f"""
        const bedrock = new Bedrock();
        const conversation = await bedrock.create({{ workingDirectory: {json.dumps(str(tmp_path))} }});
        const told = [];
        for await (const event of conversation.events(1_000_000)) {{
          if (!told.length) await conversation.send('think');
          told.push([event.event, event.revision]);
          if (event.event === 'runStopped') break;
        }}
        console.log(JSON.stringify(told));
        bedrock.close();
    """
    told = script(body, BEDROCK_DATA_DIR=str(server.data))
    assert told[0] == ["snapshot", 0]
    revisions = [revision for _, revision in told if revision]
    assert revisions == list(range(revisions[0], revisions[0] + len(revisions)))
    assert [kind for kind, _ in told].count("snapshot") == 1


class Streams:
    """A server whose every stream plays what it is given, and breaks."""

    def __init__(self, *streams: list[v1.Event]) -> None:
        self._streams = list(streams)
        self.asked: list[int] = []
        """The revisions that were subscribed after."""

    def subscribe(self, request: v1.SubscribeRequest, context: grpc.ServicerContext) -> Iterator[v1.SubscribeResponse]:
        self.asked.append(request.after_revision)
        yield v1.SubscribeResponse(events=self._streams.pop(0))
        context.abort(grpc.StatusCode.UNAVAILABLE, "broken")


@pytest.fixture
def play(script: Script) -> Iterator[Play]:
    """Has the library follow such streams from revision 4 to a deletion: kind, revision and text of what it shows."""
    server = grpc.server(ThreadPoolExecutor(max_workers=2))
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"

    def follow(streams: Streams) -> list[list[Any]]:
        handler = grpc.unary_stream_rpc_method_handler(
            streams.subscribe, v1.SubscribeRequest.FromString, v1.SubscribeResponse.SerializeToString
        )
        service = grpc.method_handlers_generic_handler("bedrock.v1.ConversationService", {"Subscribe": handler})
        server.add_generic_rpc_handlers((service,))
        server.start()
        body = """
            const bedrock = new Bedrock();
            const told = [];
            for await (const event of bedrock.conversation('conversations/c').events(4)) {
              told.push([event.event, event.revision, event.textDelta?.text ?? '']);
            }
            console.log(JSON.stringify(told));
            bedrock.close();
        """
        told: list[list[Any]] = script(body, BEDROCK_ADDRESS=address, BEDROCK_TOKEN="")
        return told

    yield follow
    server.stop(None).wait(PATIENCE)


def at(revision: int, event: v1.Event) -> v1.Event:
    numbered = v1.Event(revision=revision)
    numbered.MergeFrom(event)
    return numbered


PARTIAL = v1.Event(snapshot=v1.Event.Snapshot(partial=[delta("word ", 0).text_delta]))
CAUGHT_UP = v1.Event(caught_up=v1.Event.CaughtUp())
DELETED = v1.Event(deleted=v1.Event.Deleted())
STOPPED = stopped("conversations/c/requestCycles/1")
SAID = stored("agent", v1.ContentBlock(text="word."), request="r1", attempt=1)


def test_durable_events_are_shown_once_even_if_they_are_sent_again(play: Play) -> None:
    again = [at(revision, STOPPED) for revision in (3, 4, 5, 5, 6)]
    streams = Streams([CAUGHT_UP, *again], [CAUGHT_UP, *again, at(8, STOPPED), DELETED])
    assert play(streams) == [["runStopped", 5, ""], ["runStopped", 6, ""], ["runStopped", 8, ""], ["deleted", 0, ""]]
    assert streams.asked == [4, 6]


def test_events_of_unknown_kinds_are_skipped_and_still_count(play: Play) -> None:
    streams = Streams([CAUGHT_UP, v1.Event(revision=5)], [CAUGHT_UP, DELETED])
    assert play(streams) == [["deleted", 0, ""]]
    assert streams.asked == [4, 5]


def test_what_an_open_slot_holds_is_shown_once_the_stream_has_caught_up(play: Play) -> None:
    streams = Streams([PARTIAL, CAUGHT_UP, delta("for word", 5)], [PARTIAL, at(5, STOPPED), DELETED])
    shown = [["textDelta", 0, "word "], ["textDelta", 0, "for word"]]
    assert play(streams) == [*shown, ["runStopped", 5, ""], ["deleted", 0, ""]]


def test_a_run_ends_with_a_value_that_fits_a_plain_schema(
    script: Script, server: ServerProcess, tmp_path: Path
) -> None:
    schema = {"type": "object", "properties": {"name": {"type": "string", "default": "Ada"}}, "required": ["name"]}
    told = script(
        f"""
        const bedrock = new Bedrock();
        const made = await bedrock.create({{ workingDirectory: {json.dumps(str(tmp_path))} }});
        const refused = await made.send('Who?', {{ outputSchema: 'name' }}).catch((error) => Object.keys(error.fields));
        const run = await made.send('Who?', {{ outputSchema: {json.dumps(schema)} }});
        const before = run.output;
        for await (const _ of run);
        console.log(JSON.stringify({{ refused, before, output: run.output }}));
        bedrock.close();
        """,
        BEDROCK_DATA_DIR=str(server.data),
    )
    assert told == {"refused": ["outputSchema"], "before": None, "output": {"name": "Ada"}}


def test_a_conversation_is_what_its_creator_makes_it(script: Script, server: ServerProcess, tmp_path: Path) -> None:
    told = script(
        f"""
        const bedrock = new Bedrock();
        const workingDirectory = {json.dumps(str(tmp_path))};
        const chosen = {{ instructions: 'In rhymes.', tools: ['bash', 'tools/think'] }};
        const made = await bedrock.create({{ workingDirectory, ...chosen, generation: {{ reasoningEffort: 'low' }} }});
        const instructions = {{ text: 'A poet.', replace: true }};
        const bare = await bedrock.create({{ workingDirectory, instructions, tools: [] }});
        const run = await made.send('think', {{ generation: {{ reasoningEffort: 'none' }} }});
        let thought = '';
        for await (const {{ textDelta }} of run) if (textDelta?.reasoning) thought += textDelta.text;
        const changed = await made.update({{ generation: {{ reasoningEffort: 'max' }} }});
        const wrong = made.update({{ generation: {{ reasoningEffort: 'huge' }} }});
        const refused = await wrong.catch(({{ fields }}) => Object.keys(fields));
        const [first, second] = [await made.get(), await bare.get()];
        console.log(JSON.stringify({{
          instructions: [first.instructions, second.instructions], tools: [first.tools, second.tools], thought, refused,
          effort: changed.generation.reasoningEffort,
        }}));
        bedrock.close();
        """,
        BEDROCK_DATA_DIR=str(server.data),
    )
    assert told == {
        "instructions": [{"text": "In rhymes.", "replace": False}, {"text": "A poet.", "replace": True}],
        "tools": [{"tools": ["tools/bash", "tools/think"]}, {"tools": []}],
        "thought": "",
        "refused": ["conversation.generation.reasoningEffort"],
        "effort": "REASONING_EFFORT_MAX",
    }


def test_the_types_name_all_that_there_is_and_nothing_else(
    script: Script, server: ServerProcess, tmp_path: Path
) -> None:
    body = f"""
        const bedrock = new Bedrock();
        const made = await bedrock.create({{ workingDirectory: {json.dumps(str(tmp_path))} }});
        const run = await made.send('think');
        const members = (object) =>
          [...Object.keys(object), ...Object.getOwnPropertyNames(Object.getPrototypeOf(object))].sort();
        const error = await bedrock.call('nothing', {{}}).catch((refusal) => refusal);
        console.log(JSON.stringify({{
          Bedrock: members(bedrock), Conversation: members(made), Run: members(run), BedrockError: members(error),
        }}));
        process.exit();
    """
    told = script(body, BEDROCK_DATA_DIR=str(server.data))
    declared = (installed.NODE_CLIENT / "bedrock.d.ts").read_text(encoding="utf-8")
    for name, members in told.items():
        _, _, declaration = declared.partition(f" {name} ")
        found = re.findall(r"^  (?:readonly )?(\w+)[(:]", declaration.partition("\n}")[0], re.MULTILINE)
        # Of an error, its name is Error's; whoever holds a type can not call a constructor that is not exported.
        assert {*members} - {"constructor", "name"} == {*found} - {"constructor", "name"}, name


@pytest.mark.parametrize(
    ("closing", "shown"),
    [(discarded(), [["streamDiscarded", 5, ""]]), (SAID, [["textDelta", 0, "word."], ["messageAdded", 5, ""]])],
    ids=["void", "said"],
)
def test_a_slot_that_closes_while_the_stream_catches_up_is_not_shown_again(
    closing: v1.Event, shown: list[list[Any]], play: Play
) -> None:
    streams = Streams([PARTIAL, at(5, closing), at(6, STOPPED), CAUGHT_UP, DELETED])
    assert play(streams) == [*shown, ["runStopped", 6, ""], ["deleted", 0, ""]]


def test_a_token_is_not_sent_in_the_clear_to_another_machine(script: Script) -> None:
    body = """
        const attempt = (address) => {
          try {
            new Bedrock({ address, token: 't' }).close();
            return 'sent';
          } catch (error) {
            return error.message;
          }
        };
        console.log(JSON.stringify(process.env.ADDRESSES.split(' ').map(attempt)));
    """
    refused = ("bedrock.example.com", "127.0.0.1.example.com:1")
    sent = ("127.0.0.1:1", "localhost", "unix:/run/b", "https://bedrock.example.com", "http://bedrock.example.com")
    told = script(body, ADDRESSES=" ".join(refused + sent))
    assert ["unencrypted" in text for text in told] == [True] * len(refused) + [False] * len(sent)


def test_a_server_of_this_machine_is_trusted_only_if_no_other_user_could_have_written_its_files(
    script: Script, server: ServerProcess, tmp_path: Path
) -> None:
    """No server, a directory that others may enter, an address of TCP, a file in place of the socket."""
    body = """
        const attempt = async () => (await new Bedrock().call('listModels', {})) && '';
        console.log(JSON.stringify(await attempt().catch(({ reason, message }) => [reason, message])));
        process.exit();
    """

    def told(data: Path) -> Any:
        return script(body, BEDROCK_DATA_DIR=str(data))

    assert told(tmp_path / "missing")[0] == "SERVER_NOT_RUNNING"
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    assert told(data)[0] == "SERVER_NOT_RUNNING"
    for name in ("token", "address"):
        (data / name).write_bytes((server.data / name).read_bytes())
    assert told(data) == ""
    data.chmod(0o755)
    assert "others can access" in told(data)[1]
    data.chmod(0o700)
    (data / "address").write_text(server.address)
    assert "does not name a Unix socket" in told(data)[1]
    (data / "file").touch()
    (data / "address").write_text(f"unix:{data}/file")
    assert "is not a socket" in told(data)[1]
    (data / "address").write_text(f"unix:{data}/gone")
    assert told(data)[0] == "SERVER_NOT_RUNNING"


def test_the_token_of_this_machine_goes_to_no_port(script: Script, server: ServerProcess) -> None:
    body = """
        const bedrock = new Bedrock();
        console.log(JSON.stringify(await bedrock.call('listModels', {}).then(() => '', ({ reason }) => reason)));
        process.exit();
    """

    def told(**environment: str) -> Any:
        return script(body, BEDROCK_DATA_DIR=str(server.data), **environment)

    assert told(BEDROCK_ADDRESS=server.address) == "UNAUTHENTICATED"
    assert told(BEDROCK_ADDRESS=server.address, BEDROCK_TOKEN=server.token) == ""
    assert told(BEDROCK_ADDRESS=server.socket) == ""
