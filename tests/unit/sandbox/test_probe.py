"""The probe answers, whatever the machine is like."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

import pytest

from actors.adapters.sandbox import probe
from actors.adapters.sandbox.probe import landlock_abi
from actors.ports import SandboxReport, SandboxUnavailableError


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a machine fails at: by tier, why; `abi` is its Landlock."""
    fails: dict[str, Any] = {"A": "", "B": "", "none": "", "abi": 7, "workspace": ""}
    monkeypatch.setattr(probe, "why_not", lambda report, mode=None: fails["workspace" if mode else report.tier])
    monkeypatch.setattr(probe, "landlock_abi", lambda: fails["abi"])
    monkeypatch.setattr(probe, "can_make_pid_namespace", lambda: True)
    monkeypatch.setattr(os, "uname", lambda: type("Name", (), {"machine": "x86_64"}))
    return fails


@pytest.mark.parametrize(
    ("fails", "tier", "said"),
    [
        ({}, "A", ""),
        ({"A": "no namespaces"}, "B", "no namespaces"),
        ({"A": "no namespaces"}, "B", "user.max_user_namespaces"),
        ({"A": "no", "abi": 5}, "B", "Landlock ABI 5 does not block signals"),
        ({"A": "no", "B": "no", "abi": 0}, "none", "the kernel does not support Landlock"),
        ({"A": "no", "B": "files can be written anywhere"}, "none", "files can be written anywhere"),
    ],
)
def test_the_best_tier_that_holds_is_taken(
    machine: dict[str, Any], fails: Mapping[str, Any], tier: str, said: str
) -> None:
    machine.update(fails)
    report = probe.probe()
    assert (report.tier, report.restriction_available) == (tier, tier != "none")
    assert said in report.reason
    assert bool(report.reason) == (tier != "A")


@pytest.mark.parametrize("tier", ["A", "B"])
def test_a_tier_that_is_asked_for_is_kept_or_refused(machine: dict[str, Any], tier: str) -> None:
    assert probe.probe(tier).tier == tier
    machine[tier] = "file modes can be changed anywhere"
    with pytest.raises(SandboxUnavailableError, match=f"sandbox = {tier}.*modes can be changed"):
        probe.probe(tier)
    machine["abi"] = 0
    with pytest.raises(SandboxUnavailableError, match="does not support Landlock"):
        probe.probe(tier)


@pytest.mark.parametrize(
    ("fails", "said"),
    [
        ({}, ""),
        ({"workspace": "protected names can be created"}, "protected names can be created"),
        ({"abi": 2}, "Landlock ABI 2 cannot restrict file truncation"),
        ({"A": "no", "B": "no", "abi": 0}, "the kernel does not support Landlock"),
    ],
)
def test_the_workspace_mode_is_offered_only_where_it_holds(
    machine: dict[str, Any], fails: Mapping[str, Any], said: str
) -> None:
    machine.update(fails)
    report = probe.probe()
    assert report.workspace_available == (not said)
    assert said in report.workspace_reason
    assert bool(report.workspace_reason) == bool(said)


def test_none_switches_it_off_and_says_so(machine: dict[str, Any]) -> None:
    report = probe.probe("none")
    assert report.tier == "none"
    assert "sandbox = none" in report.reason


@pytest.mark.parametrize("hides", [True, False])
def test_hiding_is_claimed_only_where_it_holds(machine: dict[str, Any], hides: bool) -> None:
    machine["none"] = "" if hides else "the server's files could not be hidden"
    report = probe.probe()
    assert (report.hides_protected, report.pid_namespace) == (hides, True)


def test_a_program_that_gets_out_or_says_nothing_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    report = SandboxReport("none", 0, pid_namespace=False)
    assert probe.why_not(report) == "protected files can be read"
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert probe.why_not(report)


def test_no_place_for_temporary_files_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **options: Any) -> None:
        raise FileNotFoundError("no usable directory")

    monkeypatch.setattr(tempfile, "TemporaryDirectory", refuse)
    assert "no usable directory" in probe.why_not(SandboxReport("none", 0, pid_namespace=False))


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
