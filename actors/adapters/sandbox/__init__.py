"""Runs tools as process trees that can always be killed: the tool host, its client in the server, and the kernel probe.

The server builds a `toolhost_sandbox.ToolHostSandbox(probe.probe())`, through which everything else is reached.
"""
