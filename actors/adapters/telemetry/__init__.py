"""The observer, which writes log lines, metrics and traces; the definitions of the metrics; and the exporters."""
