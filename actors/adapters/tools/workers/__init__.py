"""Programs that tools run as separate processes, so that slow or endless work on untrusted input can be killed.

Modules with a function `main(arguments)` are programs; the other modules are parts of these programs. All of them
import only the standard library and each other. A program prints "ok" or "error" on a line of its own, and then the
text for the model (or JSON for its tool).
"""
