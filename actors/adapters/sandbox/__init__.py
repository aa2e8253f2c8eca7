"""Process trees that can always be killed: the tool host, its client in the server, and the probe of kernel features.

The server builds a `toolhost_sandbox.ToolHostSandbox(probe.probe())`; everything else is reached through it.
"""
