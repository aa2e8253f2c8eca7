"""The server as an operating system process: limits, memory, open files, service manager, certificates."""
