"""Entry point of `python -m server`, which does the same as `bedrock serve`."""

from bedrock import _interrupts

_interrupts.end_at_once()

from bedrock.cli.text import safe_text  # noqa: E402 -- after `end_at_once`, so that Ctrl-C ends imports, too

from server.cli import serve  # noqa: E402

safe_text.install()
serve(prog_name="python -m server")
