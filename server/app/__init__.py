"""Startup and shutdown of the server: chooses the adapters, connects the parts, serves, and stops.

While the main thread imports modules, a background thread finds out what the sandbox can enforce. The order of startup:
data directory, store, token, models, sandbox, recovery of conversations, port, ready. At shutdown, the health service
reports NOT_SERVING, new work is refused, runs get time to finish (the drain time), streams end, tools are killed, and
the store closes. Everything that was opened is closed in reverse order, even if startup fails half-way.
"""
