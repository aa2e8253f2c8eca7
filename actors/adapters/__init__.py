"""Implementations of the ports: models, stores, tools, sandbox, images, workspace. They do not import each other."""
