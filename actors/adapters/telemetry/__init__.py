"""Observers of the server's work, which write log lines, metrics and traces; and ports wrapped to report to them."""
