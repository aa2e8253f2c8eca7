"""Implementations of the ports (interfaces): models, stores, tools, sandbox, images, workspace.

None imports another.
"""
