"""Observers of the server's work: lines in the log, metrics, traces; and the ports that are observed."""
