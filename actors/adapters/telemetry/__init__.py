"""Observers that write log lines, metrics and traces of the server's work; wrapped ports that report to them."""
