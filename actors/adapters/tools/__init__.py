"""The tools that a model can call, one module each, and the registry that offers them.

The server creates one `registry.StandardToolbox()` and uses all tools through it.
"""
