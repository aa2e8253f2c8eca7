"""`python -m server` is `bedrock serve`."""

from server.cli import serve

serve(prog_name="python -m server")
