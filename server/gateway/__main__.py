"""Entry point of `python -m server.gateway`: `bedrock gateway`, as `bedrock serve --http` runs it."""

from server.gateway.command import gateway

gateway(prog_name="python -m server.gateway")
