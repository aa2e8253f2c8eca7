"""Finds out how strictly the sandbox can isolate tools on this machine."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

from actors.adapters.sandbox.probe import probe, with_separation
from actors.ports import SandboxReport
from server.settings.config import Config


def probed(config: Config) -> SandboxReport:
    report = probe(config.sandbox)
    return with_separation(report) if config.several else report


def probing(config: Config) -> Future[SandboxReport]:
    """Run `probed` on its own thread. It mostly waits for processes, so the caller can import modules meanwhile."""
    threads = ThreadPoolExecutor(1, thread_name_prefix="bedrock-probe")
    try:
        return threads.submit(probed, config)
    finally:
        threads.shutdown(wait=False)


def sandbox_line(report: SandboxReport) -> str:
    """One line for the log: how strictly tools are isolated ("tier"), and why not more strictly."""
    return f"sandbox: tier {report.tier}" + (f" ({report.reason})" if report.reason else "")
