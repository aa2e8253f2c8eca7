"""Process trees that can always be killed: the tool host, the server's side of it, and what the machine offers.

The server builds a `toolhost_sandbox.ToolHostSandbox(probe.probe())`; everything else is reached through it.
"""
