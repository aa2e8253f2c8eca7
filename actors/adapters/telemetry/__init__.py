"""Observers that write log lines, metrics and traces, and wrappers that report what other adapters do to them."""
