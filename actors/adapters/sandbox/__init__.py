"""Processes that can always be stopped: the tool host, the server's side of it, and what the machine offers.

`spawn.ToolHostSandbox(probe.probe())` is what `server.app` builds; everything else is reached through it.
"""
