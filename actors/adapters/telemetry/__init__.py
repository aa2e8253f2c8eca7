"""Observers that write log lines, metrics and traces, and wrappers of other adapters that report to these observers."""
