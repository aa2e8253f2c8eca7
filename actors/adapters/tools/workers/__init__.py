"""What tools do in a process of its own, because it may be slow, huge, hostile or never end, and must be killable.

Modules with a `main(arguments)` are programs, the others their parts; all know the standard library and each other
only, but for `patterns`, which knows pathspec. A program writes a line with its verdict, "ok" or "error", and then what
the model reads (or JSON for its tool).
"""
