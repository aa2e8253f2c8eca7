"""The tools that a model can call: one module each, and the registry that offers them.

`registry.StandardToolbox()` is what `server.app` builds; everything else is reached through it.
"""
