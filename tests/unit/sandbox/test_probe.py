"""The probe answers, whatever the machine is like."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from actors.sandbox import probe
from actors.sandbox.probe import landlock_abi


def test_no_tier_is_claimed_and_the_reason_names_what_the_kernel_offers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "can_make_pid_namespace", lambda: True)
    monkeypatch.setattr(probe, "landlock_abi", lambda: 7)
    report = probe.probe()
    assert (report.tier, report.landlock_abi, report.pid_namespace) == ("none", 7, True)
    assert not report.restriction_available
    assert "Landlock ABI 7" in report.reason
    monkeypatch.setattr(probe, "landlock_abi", lambda: 0)
    assert "no Landlock" in probe.probe().reason


@pytest.mark.parametrize("failure", [OSError("no"), subprocess.TimeoutExpired("host", 1)])
def test_a_probe_that_cannot_run_finds_nothing(failure: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise failure

    monkeypatch.setattr(subprocess, "run", fail)
    assert not probe.can_make_pid_namespace()


def test_a_host_that_fails_is_a_no(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert not probe.can_make_pid_namespace()


def test_the_abi_is_a_number() -> None:
    assert landlock_abi() >= 0
