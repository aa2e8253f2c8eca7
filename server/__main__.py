"""`python -m server` is `bedrock serve`."""

from bedrock.cli.text import safe_streams

from server.cli import serve

safe_streams.install()
serve(prog_name="python -m server")
