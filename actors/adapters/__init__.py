"""Implementations of the ports: models, stores, tools, MCP servers, sandbox, images, workspace, telemetry.

Ports are the interfaces that the actors use. None of these packages imports another of them.
"""
