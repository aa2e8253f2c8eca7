"""The observer that writes log lines, metrics and traces, the definitions of the metrics, and the exporters."""
