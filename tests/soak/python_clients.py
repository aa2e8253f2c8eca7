"""The Python SDK, blocking and with asyncio."""

import asyncio
from contextlib import suppress

from bedrock import AsyncClient, Client, Conversation
from bedrock.errors import AgentBusy, BedrockError, Unavailable
from bedrock.types import ApprovalPolicy, Delivery, Mode

from tests.soak.clients import Refused, SoakClient

POLICIES: tuple[ApprovalPolicy, ...] = ("auto", "auto", "ask_all")
MODES: tuple[Mode, ...] = ("restricted", "unrestricted")
QUEUED: tuple[Delivery, ...] = ("steer", "follow_up")
KEPT = 4
"""Conversations that are gone on with."""
TIMEOUT = 20.0


class SyncClient(SoakClient):
    """Everything that can be done to a conversation, each call repeated until it is answered."""

    kind = "python"

    def open(self) -> None:
        self._client = Client(self.site.address, token=self.site.token, timeout=TIMEOUT)
        self._conversations: list[Conversation] = []

    def close(self) -> None:
        self._client.close()

    def act(self) -> None:
        if len(self._conversations) < KEPT:
            self._create()
        conversation = self.random.choice(self._conversations)
        acts = (self._ask, self._ask, self._leave, self._steer, self._mode, self._title, self._remove)
        self.random.choice(acts)(conversation)

    def _create(self) -> None:
        request_id, policy, mode = self.request_id(), self.random.choice(POLICIES), self.random.choice(MODES)
        made = self.until_answered(
            lambda: self._client.create(
                self.site.folder, request_id=request_id, approval_policy=policy, mode=mode, title=request_id
            )
        )
        self.journal.write("created", conversation=made.name, title=request_id)
        self._conversations.append(made)

    def _send(self, conversation: Conversation, what: str, delivery: Delivery = "direct") -> str:
        """Send until it is answered; returns the name of the run, empty if it only waits."""
        token, request_id = self.token(), self.request_id()
        self.journal.write("sending", conversation=conversation.name, token=token)
        try:
            run = self.until_answered(
                lambda: conversation.send(f"#do {what} {token}", delivery=delivery, request_id=request_id)
            )
        except Refused as refusal:
            self.journal.write("refused", conversation=conversation.name, token=token, reason=str(refusal))
            raise
        self.journal.write(
            "accepted", conversation=conversation.name, token=token, message=run.message.name, delivery=delivery
        )
        return run.name

    def _ask(self, conversation: Conversation) -> None:
        """Wait for the end; approve or deny what is asked."""
        what = self.what()
        self._send(conversation, "say" if what == "hang" else what)
        self._settle(conversation)

    def _leave(self, conversation: Conversation) -> None:
        """Cancel in the middle of it."""
        self._send(conversation, self.what())
        self.stopping.wait(self.random.random() * 0.4)
        self.until_answered(lambda: conversation.cancel(discard_queued=self.random.random() < 0.5))
        self._settle(conversation)

    def _steer(self, conversation: Conversation) -> None:
        """More messages while it works."""
        self._send(conversation, self.random.choice(("slow", "tools", "fork")))
        for _ in range(self.random.randint(1, 3)):
            with suppress(Refused):
                self._send(conversation, "say", self.random.choice(QUEUED))
        if self.random.random() < 0.3:
            self.until_answered(conversation.cancel)
        self._settle(conversation)

    def _mode(self, conversation: Conversation) -> None:
        mode = self.random.choice(MODES)
        self.until_answered(lambda: conversation.set_mode(mode))
        self.journal.write("mode", conversation=conversation.name, mode=mode)

    def _title(self, conversation: Conversation) -> None:
        title = self.token()
        self.journal.write("titling", conversation=conversation.name, title=title)
        self.until_answered(lambda: conversation.update(title=title))
        self.journal.write("titled", conversation=conversation.name, title=title)

    def _remove(self, conversation: Conversation) -> None:
        if self.random.random() < 0.5:
            return
        self.journal.write("deleting", conversation=conversation.name)
        self._conversations.remove(conversation)
        self.until_answered(lambda: conversation.delete(force=True, missing_ok=True))
        self.journal.write("deleted", conversation=conversation.name)

    def _settle(self, conversation: Conversation) -> None:
        """Until nothing happens by itself any more; answers whatever is asked."""
        while not self.stopping.is_set():
            with suppress(Unavailable), conversation.events(until_settled=True, omit_deltas=True) as events:
                for _ in events:
                    pass
                pending = conversation.get().state.approvals
                if not pending:
                    return
                with suppress(BedrockError):
                    (conversation.approve if self.random.random() < 0.6 else conversation.deny)(pending[0].name)


class AsyncioClient(SoakClient):
    """Several conversations at the same time, each in a task; a task that is cancelled cancels its run."""

    kind = "asyncio"

    def act(self) -> None:
        asyncio.run(self._round())

    async def _round(self) -> None:
        async with AsyncClient(self.site.address, token=self.site.token, timeout=TIMEOUT) as client:
            await asyncio.gather(*(self._talk(client) for _ in range(3)))

    async def _talk(self, client: AsyncClient) -> None:
        try:
            conversation = await client.create(self.site.folder, mode="unrestricted")
        except BedrockError:
            return
        self.journal.write("created", conversation=conversation.name)
        for _ in range(3):
            token = self.token()
            self.journal.write("sending", conversation=conversation.name, token=token)
            try:
                run = await conversation.send(f"#do {self.what()} {token}")
            except AgentBusy:
                return
            except BedrockError:
                continue
            self.journal.write(
                "accepted", conversation=conversation.name, token=token, message=run.message.name, delivery="direct"
            )
            with suppress(BedrockError, TimeoutError):
                await asyncio.wait_for(run.wait(), self.random.random() * 3)
            with suppress(BedrockError):
                await conversation.cancel(discard_queued=True)
