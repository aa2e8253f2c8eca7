"""`bedrock config check`: what it shows, what it finds, and that it changes nothing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from server.cli import config, described
from server.settings.loading import SETTINGS, load

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("BEDROCK_CONFIG", "BEDROCK_DATA_DIR", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def check(*arguments: str, **env: str) -> Result:
    return CliRunner(env=env).invoke(config, ["check", *arguments])


def test_every_setting_is_shown_with_its_origin(home: Path) -> None:
    file = home / "bedrock.toml"
    file.write_text("drain_seconds = 3\ntitles = false\n")
    file.chmod(0o600)
    done = check("--config", str(file), "--data-dir", str(home / "data"), BEDROCK_CPUS="0")
    assert done.exit_code == 0
    lines = done.output.splitlines()
    assert [line.removeprefix("# ").split()[0] for line in lines[: len(SETTINGS)]] == list(SETTINGS)
    assert f'data_dir = "{home / "data"}"  # --data-dir' in lines
    assert f"drain_seconds = 3.0  # {file}: drain_seconds" in lines
    assert f"titles = false  # {file}: titles" in lines
    assert 'cpus = "0"  # BEDROCK_CPUS' in lines
    assert 'listen = "127.0.0.1:7421"  # default' in lines
    assert lines[-1] == "the server can start with these settings"


def test_what_is_shown_is_a_settings_file(home: Path) -> None:
    """It is read again as the same settings, whether they are given or defaults."""
    odd = {"BEDROCK_DENY_READ": '/a "b",/c\\d', "BEDROCK_CPUS": "0,2-3", "BEDROCK_LISTEN": "none"}
    more = {"BEDROCK_METRICS_LISTEN": "9100", "BEDROCK_TLS_KEY": "/k", "BEDROCK_TLS_CERTIFICATE": "/c"}
    for environ in ({}, odd, more):
        settings = load({}, {"HOME": str(home), **environ})
        file = home / "shown.toml"
        file.write_text("\n".join(described(settings)))
        file.chmod(0o600)
        again = load({}, {"HOME": str(home)}, file)
        assert replace(again, file=None, environ=settings.environ, origins=settings.origins) == settings


def test_nothing_is_created_and_no_key_is_shown(home: Path) -> None:
    done = check(ANTHROPIC_API_KEY="sk-very-secret")
    assert done.exit_code == 0
    assert "provider anthropic: anthropic, key from ANTHROPIC_API_KEY" in done.output
    assert "sk-very-secret" not in done.output
    assert list(home.iterdir()) == []


def test_every_address_is_shown(home: Path) -> None:
    file = home / "bedrock.toml"
    file.write_text('[[listen]]\naddress = "127.0.0.1:1"\n[[listen]]\naddress = "unix:/run/b.sock"\n')
    file.chmod(0o600)
    lines = check("--config", str(file)).output.splitlines()
    assert "# listen is in tables [[listen]]: 127.0.0.1:1, unix:/run/b.sock" in lines


def test_what_principals_read_is_shown(home: Path) -> None:
    (home / "ada").mkdir()
    file = home / "bedrock.toml"
    file.write_text(f'[principals.ada]\nroots = ["{home}/ada"]\n[principals.board]\nroots = []\nrole = "reader"\n')
    file.chmod(0o600)
    lines = check("--config", str(file)).output.splitlines()
    assert f"principal ada: user, reads {home}/ada" in lines
    assert "principal board: reader, reads no directories" in lines


def test_what_principals_name_and_nobody_has_is_noted(home: Path) -> None:
    file = home / "bedrock.toml"
    file.write_text(
        f'[principals.ada]\nroots = ["{home}", "{home}/none"]\nmcp_servers = ["web", "wbe"]\n'
        '[[mcp_servers]]\nname = "web"\nurl = "https://mcp.test/"\nenabled = false\n'
    )
    file.chmod(0o600)
    told = f"principal ada: user, reads {home}, {home}/none; there is no directory {home}/none, no MCP server wbe"
    assert told in check("--config", str(file)).output.splitlines()


def test_quotas_are_shown_as_they_count_for_each(home: Path) -> None:
    file = home / "bedrock.toml"
    file.write_text(
        "[quotas]\ncost_per_month = 500\n[principal_defaults.quotas]\nconcurrent_runs = 2\nstreams = 9\n"
        "[principals.ada]\nroots = []\nquotas = { concurrent_runs = 5 }\n[principals.bob]\nroots = []\n"
    )
    file.chmod(0o600)
    assert [line for line in check("--config", str(file)).output.splitlines() if line.startswith("quotas ")] == [
        "quotas of all together: cost_per_month $500.00",
        "quotas of each principal: concurrent_model_requests 750, concurrent_runs 2, streams 9",
        "quotas of ada: concurrent_model_requests 750, concurrent_runs 5, streams 9",
    ]


def test_a_wrong_setting_is_named() -> None:
    done = check(BEDROCK_LISTEN="nowhere")
    assert (done.exit_code, "BEDROCK_LISTEN: must be host:port" in done.output) == (2, True)


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"BEDROCK_CPUS": "8000"}, "cpus"),
        ({"BEDROCK_DEFAULT_MODEL": "no-such-model"}, "default_model"),
    ],
)
def test_what_this_machine_cannot_give_is_named(env: dict[str, str], said: str) -> None:
    done = check(**env)
    assert (done.exit_code, said in done.output) == (2, True)


def test_a_certificate_that_is_none_is_found(home: Path) -> None:
    (home / "c.pem").write_text("no certificate")
    done = check(BEDROCK_TLS_CERTIFICATE=str(home / "c.pem"), BEDROCK_TLS_KEY=str(home / "c.pem"))
    assert (done.exit_code, "not a certificate and its key" in done.output) == (1, True)


def test_a_data_directory_that_others_may_write_to_is_found(home: Path) -> None:
    (home / "data").mkdir()
    (home / "data").chmod(0o777)
    done = check("--data-dir", str(home / "data"))
    assert (done.exit_code, "others may have put files" in done.output) == (1, True)
    (home / "data").chmod(0o755)  # the server restricts this one when it starts
    assert check("--data-dir", str(home / "data")).exit_code == 0
    assert (home / "data").stat().st_mode & 0o777 == 0o755


def test_logins_at_mcp_servers_are_told(home: Path) -> None:
    (home / "data").mkdir(mode=0o700)
    file = home / "bedrock.toml"
    file.write_text('[[mcp_servers]]\nname = "web"\nurl = "https://mcp.test/"\n')
    told = "MCP server web: https://mcp.test/"
    asked = ("--config", str(file), "--data-dir", str(home / "data"))
    assert f"{told}, not logged in: if it asks for that, bedrock mcp login web\n" in check(*asked).output
    url = {"url": "https://mcp.test/", "resource": "r", "token_endpoint": "t", "issuer": "i", "client_id": "c"}
    stored = home / "data" / "mcp-logins.json"
    stored.write_text(json.dumps({"web": {"id": "1", "access_token": "a-secret", **url}}))
    stored.chmod(0o600)
    done = check(*asked).output
    assert f"{told}, logged in\n" in done
    assert "a-secret" not in done
    stored.chmod(0o644)
    assert f"{told}, whose login cannot be used: {stored} can be read by others" in check(*asked).output


def test_what_is_set_of_models_is_told_with_its_prices(home: Path) -> None:
    file = home / "bedrock.toml"
    file.write_text('[models."mine-"]\nwindow = 64000\nprice = { input = 1.5, output = 6 }\n')
    done = check("--config", str(file))
    assert "model mine-: sets window; price of input $1.5, output $6\n" in done.output


def test_mcp_servers_are_named_and_their_mistakes_found(home: Path) -> None:
    file = home / "bedrock.toml"
    file.write_text(
        '[[mcp_servers]]\nname = "files"\ncommand = ["mcp-files", "$NONE"]\nenvironment = { KEY = "$NONE" }\n'
    )
    file.chmod(0o600)
    done = check("--config", str(file), NONE="a secret of theirs")
    assert done.exit_code == 0
    assert "MCP server files: mcp-files, which is not on the PATH of this command\n" in done.output
    assert "a secret of theirs" not in done.output
    wrong = check("--config", str(file))
    assert wrong.exit_code == 2
    assert f"{file}: mcp_servers.files.environment.KEY: NONE is not set" in wrong.output


def test_approval_rules_are_told_and_their_mistakes_found(home: Path) -> None:
    file = home / "bedrock.toml"
    file.write_text('[[approval_rules]]\naction = "deny"\ncommand_prefix = "git push"\n')
    file.chmod(0o600)
    done = check("--config", str(file))
    assert (done.exit_code, "approval rule 1: deny commands that begin with 'git push'" in done.output) == (0, True)
    tools = ("bash", "mcp__a__b", "bsh")
    file.write_text("".join(f'[[approval_rules]]\naction = "deny"\ntool = "{tool}"\n' for tool in tools))
    told = [line.partition(": ")[2] for line in check("--config", str(file)).output.splitlines() if " rule " in line]
    odd = "deny the tool bsh, which the server does not have: only a client's tool can be meant"
    assert told == ["deny the tool bash", "deny the tool mcp__a__b", odd]
    file.write_text('[[approval_rules]]\naction = "allow"\ncommand_prefix = "sudo make"\n')
    wrong = check("--config", str(file))
    assert wrong.exit_code == 2
    assert f"{file}: approval_rules[1].command_prefix: must not begin with sudo" in wrong.output


def test_what_clients_may_name_is_told_and_its_mistakes_found(home: Path) -> None:
    file = home / "bedrock.toml"
    file.write_text('[mcp_from_clients]\nprograms = true\nurls = ["https://mcp.example.com"]\n')
    file.chmod(0o600)
    told = "MCP servers of clients: programs, https://mcp.example.com:443"
    assert told in check("--config", str(file)).output
    file.write_text('[mcp_from_clients]\nurls = ["https://mcp.example.com/path"]\n')
    wrong = check("--config", str(file))
    assert wrong.exit_code == 2
    assert f"{file}: mcp_from_clients.urls: must end with the host" in wrong.output
