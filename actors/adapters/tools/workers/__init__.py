"""Programs that tools run as separate processes, because slow or endless work on untrusted input must be killable.

Modules with a `main(arguments)` are programs; the others are parts of these programs. All use only the standard library
and each other. A program prints "ok" or "error" on its own line, and then the text for the model (or JSON for its
tool).
"""
