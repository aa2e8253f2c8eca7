"""The Node client at a node that does not own the conversation."""

from pathlib import Path

from tests.peers.conftest import Node
from tests.peers.node_chat import run_script
from tests.support import processes
from tests.support.chat import Chat
from tests.support.fake_provider import FakeProvider, calls, says
from tests.support.nodes import Nodes
from tests.support.patience import eventually
from tests.support.server_process import provider


def test_another_node_than_the_owner_takes_all_calls_and_streams(
    node: Node, fake_provider: FakeProvider, tmp_path: Path
) -> None:
    nodes = Nodes(tmp_path, env=provider(fake_provider.url))
    try:
        owner, other = nodes.start("owner"), nodes.start("other")
        forever = processes.forever()
        part = fake_provider.part(says("There."), calls(("bash", {"cmd": f"sleep {forever}"})))
        with owner.client() as client:
            chat = Chat(client, part, tmp_path, mode="unrestricted")
            eventually(lambda: len(list(client.nodes())) == 2, "the nodes know each other")
            told = run_script(
                node,
                tmp_path,
                f"""
                const bedrock = new Bedrock({{ address: '{other.address}', token: '{other.token}' }});
                const conversation = bedrock.conversation('{chat.name}');
                const nodes = [];
                for await (const {{ name, answering }} of bedrock.nodes()) nodes.push([name, answering]);
                const kinds = [];
                for await (const event of await conversation.send('Where? {part.key}')) kinds.push(event.event);
                const run = await conversation.send('Sleep. {part.key}');
                let state;
                for await (const event of run) {{
                  const executing = event.stateChanged?.state.kind === 'STATE_KIND_TOOL_EXECUTING';
                  if (executing) state = (await conversation.cancel()).state.kind;
                }}
                const texts = [];
                for await (const {{ content }} of conversation.messages()) texts.push(content[0].text);
                console.log(JSON.stringify({{ nodes, kinds, state, texts }}));
                process.exit();
                """,
            )
            assert sorted(map(tuple, told["nodes"])) == [("other", True), ("owner", False)]
            assert "runStopped" in told["kinds"]
            assert told["state"] == "STATE_KIND_IDLE"
            assert "There." in told["texts"]
            eventually(lambda: not processes.running(forever), "nothing of the tool is left")
            chat.assert_valid()
    finally:
        nodes.close()
