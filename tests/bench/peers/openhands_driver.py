"""The turns with OpenHands' SDK: a conversation on each thread, events kept on disk, text streamed to a callback."""

from __future__ import annotations

import tempfile
from pathlib import Path

from openhands.sdk import LLM, Agent, Conversation
from pydantic import SecretStr

from tests.bench.driver import Driver


def main() -> None:
    driver = Driver()
    with tempfile.TemporaryDirectory(prefix="bedrock-bench-") as folder:

        def conversation(number: int) -> None:
            llm = LLM(
                model="anthropic/claude-sonnet-4-5",
                api_key=SecretStr("bench"),
                base_url=driver.url,
                stream=True,
                usage_id=str(number),
            )
            running = Conversation(
                Agent(llm=llm, tools=[]),
                workspace=folder,
                persistence_dir=Path(folder) / str(number),
                token_callbacks=[lambda _: None],
                visualizer=None,
                stuck_detection=False,
            )
            for _ in range(driver.turns):
                with driver.timed():
                    running.send_message("go on")
                    running.run()

        driver.on_threads(conversation)


if __name__ == "__main__":
    main()
