"""The setting `sandbox`: what was asked for is kept, or the server does not start."""

from pathlib import Path

import pytest

from actors.adapters.sandbox import probe
from server.app.adapter_choice import CannotStartError
from server.app.wiring import wire
from server.settings.config import load
from server.settings.setting_values import SANDBOXES


def test_every_setting_is_known_to_the_probe() -> None:
    assert SANDBOXES == probe.SETTINGS


@pytest.mark.parametrize("tier", ["A", "B"])
def test_a_tier_that_is_unavailable_is_reported_in_one_line(
    tier: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "why_not", lambda report: "the network can be reached")
    config = load({"data_dir": str(tmp_path / "data"), "sandbox": tier}, {"HOME": str(tmp_path)})
    with (
        pytest.raises(CannotStartError, match=f"does not support sandbox = {tier}.*the network") as refusal,
        wire(config),
    ):
        pass
    assert "\n" not in str(refusal.value)


def test_none_starts_without_the_restricted_mode(tmp_path: Path) -> None:
    config = load({"data_dir": str(tmp_path / "data"), "sandbox": "none"}, {"HOME": str(tmp_path)})
    with wire(config) as wired:
        assert wired.services.sandbox.report.tier == "none"
        assert not wired.services.sandbox.report.restriction_available
        assert wired.services.sandbox.report.by_setting


def test_what_is_the_server_s_own_is_protected(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f'tls_key = "{tmp_path}/key.pem"\ntls_certificate = "{tmp_path}/certificate.pem"\n')
    data = tmp_path / "elsewhere"
    (tmp_path / "data").symlink_to(data)
    data.mkdir(mode=0o700)
    config = load({"data_dir": str(tmp_path / "data")}, {"HOME": str(tmp_path)}, file)
    with wire(config) as wired:
        assert wired.services.sandbox.protected == tuple(map(str, sorted((data, file, tmp_path / "key.pem"))))
