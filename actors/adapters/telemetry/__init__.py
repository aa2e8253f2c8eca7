"""Observers that write log lines, metrics and traces, and wrappers that report the work of other adapters to them."""
