"""What tools do in a process of its own, because it may be slow, huge, hostile or never end, and must be killable.

Each module is a program with a `main(arguments)` that knows the standard library and its neighbours only. It writes a
line with its verdict, "ok" or "error", and then what the model reads.
"""
