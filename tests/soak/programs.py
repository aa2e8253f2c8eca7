"""The programs that people use: `bedrock ask`, `bedrock chat` at a terminal, and the client for Node."""

import json
import subprocess
import sys
import time
from pathlib import Path

from bedrock import Client

from tests.peers import installed
from tests.soak.clients import SoakClient
from tests.support.server_process import clean_environment
from tests.support.terminals import Terminal

ASK_SECONDS = 60.0
ANSWER_SECONDS = 15.0
LINES = 4
"""Typed into one chat."""
NODE_PROGRAM = Path(__file__).with_name("node_client.mjs")


def environment(client: SoakClient) -> dict[str, str]:
    return clean_environment(client.site.home, BEDROCK_ADDRESS=client.site.address, BEDROCK_TOKEN=client.site.token)


class AskProgram(SoakClient):
    """`bedrock ask`, one process after the other."""

    kind = "ask"

    def act(self) -> None:
        token, what = self.token(), self.random.choice(("say", "slow", "tools", "agents", "fail"))
        self.journal.write("sending", conversation="", token=token)
        done = subprocess.run(
            [sys.executable, "-m", "bedrock.cli", "ask", "--output", "json", f"#do {what} {token}"],
            cwd=self.site.folder,
            env=environment(self),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=ASK_SECONDS,
            check=False,
        )
        if "Traceback" in done.stderr:
            self.journal.write("fault", error=f"bedrock ask: {done.stderr[-500:]}")
        if done.returncode == 0:
            told = json.loads(done.stdout)
            self.journal.write("created", conversation=told["conversation"])
            self.journal.write("said", conversation=told["conversation"], token=token)


class ChatProgram(SoakClient):
    """`bedrock chat` at a terminal; it reconnects by itself."""

    kind = "chat"

    def act(self) -> None:
        with Client(self.site.address, token=self.site.token) as client:
            conversation = client.create(self.site.folder, mode="unrestricted")
            self.journal.write("created", conversation=conversation.name)
            slug = conversation.get().slug
        with Terminal("chat", "-r", slug, environ=environment(self), cwd=self.site.folder) as terminal:
            ready = self._wait_for(terminal, "idle")
            for _ in range(LINES):
                if ready and not self.stopping.is_set() and terminal._child.poll() is None:
                    self._type(terminal, conversation.name)
            terminal.keys("\x04")

    def _type(self, terminal: Terminal, name: str) -> None:
        token = self.token()
        self.journal.write("sending", conversation=name, token=token)
        terminal.keys(f"#do {self.random.choice(('say', 'slow', 'tools'))} {token}")
        terminal.keys("\r")
        if self._wait_for(terminal, f"ok {token}"):
            self.journal.write("said", conversation=name, token=token)

    @staticmethod
    def _wait_for(terminal: Terminal, words: str) -> bool:
        """Whether they appear in time; a server that is killed ends a chat that is just being started."""
        deadline = time.monotonic() + ANSWER_SECONDS
        while time.monotonic() < deadline and terminal._child.poll() is None:
            terminal._read(0.1)
            if any(words in row for row in terminal.rows):
                return True
        return False


class NodeProgram(SoakClient):
    """The client for Node, in a process that writes a journal like ours."""

    kind = "node"

    @staticmethod
    def available() -> bool:
        return installed.node_program() is not None and (installed.NODE_CLIENT / "node_modules").is_dir()

    def act(self) -> None:
        node = installed.node_program()
        assert node is not None
        process = subprocess.Popen(
            [node, NODE_PROGRAM, self.site.folder, f"{self.kind}-{self.site.round}-{self._count}"],
            env={**environment(self), **installed.node_environment(node)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._count += 1
        assert process.stdin is not None
        assert process.stdout is not None
        for line in process.stdout:
            entry = json.loads(line)
            self.journal.write(entry.pop("kind"), **entry)
            if self.stopping.is_set() and not process.stdin.closed:
                process.stdin.close()
        if not process.stdin.closed:
            process.stdin.close()
        process.wait(ASK_SECONDS)
        process.stdout.close()
