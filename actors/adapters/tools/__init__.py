"""The tools that a model can call, one module each, and the registry that offers them.

The server builds a `registry.StandardToolbox()`, through which everything else is reached.
"""
