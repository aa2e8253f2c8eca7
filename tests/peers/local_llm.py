"""`make local-llm`: a real model on this machine, a server with it, and a chat. All of them end with the chat."""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from bedrock import local_server

from tests.peers.llama import MODEL_NAME, LlamaError, LlamaServer


def data_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """Return where the conversations are kept: BEDROCK_DATA_DIR, or a directory beside the default one of servers.

    Raises:
        ValueError: BEDROCK_DATA_DIR is relative; the text says so.
    """
    of_servers = local_server.data_directory(environ)
    return of_servers if environ.get("BEDROCK_DATA_DIR") else of_servers.with_name("bedrock-local-llm")


def provider(llama: LlamaServer, name: str = MODEL_NAME, protocol: str = "openai-chat", **more: str) -> str:
    """A provider's table in a configuration file: its one model is `name`; `more` in TOML's spelling."""
    settings = {
        "preset": '"llama.cpp"',
        "protocol": f'"{protocol}"',
        "base_url": f'"{llama.url}{"" if protocol == "anthropic" else "/v1"}"',
        "api_key": f'"{llama.key}"',
        "models": f'["{name}"]',
        "default_model": f'"{name}"',
        "profile": '"lean"',
        "max_output": "512",
        "extra_body": "{ temperature = 0.2, top_p = 0.9, repeat_penalty = 1.1 }",
    }
    lines = (f"{key} = {value}" for key, value in (settings | more).items())
    return "\n".join((f'[providers."{name}"]', *lines, ""))


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="make local-llm", description="Other options are those of `bedrock chat`.", allow_abbrev=False
    )
    parser.add_argument("--gguf", type=Path, default=None, help="another model")
    parser.add_argument("--data-dir", type=Path, default=None, help="where the conversations are kept")
    wanted, chat_options = parser.parse_known_args(arguments)
    try:
        data = wanted.data_dir or data_directory()
    except ValueError as error:
        parser.error(str(error))
    if wanted.gguf and not wanted.gguf.is_file():
        parser.error(f"there is no file {wanted.gguf}")
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        try:
            print(f"starting the model… (conversations are kept in {data})", file=sys.stderr)
            with LlamaServer(folder / "llama.log", model=wanted.gguf) as llama:
                llama.await_status(200)
                (folder / "config.toml").write_text(provider(llama))
                model = f"GGUF={wanted.gguf} " if wanted.gguf else ""
                again = f'make local-llm {model}ARGS="-r {{}}"'
                return _chat(folder / "config.toml", data, ["--again", again, *chat_options])
        except LlamaError as error:
            print(error, file=sys.stderr)
            return 1


def _chat(config: Path, data: Path, options: Sequence[str]) -> int:
    """`bedrock chat` with a server of its own; signals are for the chat."""
    others = {name: value for name, value in os.environ.items() if not name.startswith("BEDROCK_")}
    chat = subprocess.Popen(
        [sys.executable, "-c", "from bedrock.cli import main; main()", "chat", "--spawn", *options],
        env=others | {"BEDROCK_CONFIG": str(config), "BEDROCK_DATA_DIR": str(data)},
    )
    signal.signal(signal.SIGINT, lambda *_: None)  # the terminal sends it to both
    signal.signal(signal.SIGTERM, lambda *_: chat.terminate())
    return chat.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
