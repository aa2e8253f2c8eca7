"""The program: it picks the adapters, wires everything, serves and shuts down.

Startup: data directory, store, token, models, sandbox, recovery of conversations, port, ready. Shutdown: the health
service reports NOT_SERVING, new work is refused, runs get their drain time, streams end, tools are killed, the store
closes. All that was opened is closed in reverse order, also when startup fails half-way.
"""
