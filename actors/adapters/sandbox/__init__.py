"""Runs tools so that all their processes can always be killed.

The parts are a helper program that starts and watches a tool (the tool host), its client in the server, and a probe
that tests what the kernel supports. The server uses this package only through
`toolhost_sandbox.ToolHostSandbox(probe.probe())`.
"""
