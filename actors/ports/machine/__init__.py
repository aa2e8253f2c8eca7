"""Ports for what this process gets from its machine: time, threads and file descriptors."""
