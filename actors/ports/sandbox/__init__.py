"""Ports for programs that run in a sandbox, each in a process tree that can always be killed."""
