"""Settings of the server: the file, variables and flags, and their checks."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from actors.runtime.quotas import Quota
from server import cli
from server.settings.config import SETTINGS, Config, load
from server.settings.setting_values import ConfigError, Cpus, Listen, PortListen

# Settings: where they come from, which one wins, and what is refused.


HOME = {"HOME": "/home/ada"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "bedrock.toml"


def config(environ: dict[str, str] | None = None, file: Path | None = None, **flags: Any) -> Config:
    return load(flags, {**HOME, **(environ or {})}, file)


def test_nothing_set_is_a_server_for_this_machine_only() -> None:
    plain = config()
    assert plain.data_dir == Path("/home/ada/.local/state/bedrock")
    assert (plain.listen, plain.tls) == (Listen("127.0.0.1", 7421), False)


def test_state_goes_where_the_desktop_says() -> None:
    assert config({"XDG_STATE_HOME": "/var/state"}).data_dir == Path("/var/state/bedrock")


def test_flags_win_over_variables_and_these_over_the_file(file: Path) -> None:
    file.write_text('listen = "127.0.0.1:1"\nlog_level = "debug"\ndrain_seconds = 3\n')
    made = config({"BEDROCK_LISTEN": "127.0.0.1:2", "BEDROCK_LOG_LEVEL": "error"}, file, listen="127.0.0.1:3")
    assert (made.listen, made.log_level, made.drain_seconds) == (Listen("127.0.0.1", 3), "error", 3.0)


def test_the_file_is_found_where_it_is_named_or_usual(tmp_path: Path) -> None:
    usual = tmp_path / "bedrock" / "config.toml"
    usual.parent.mkdir()
    usual.write_text('default_model = "usual"')
    named = tmp_path / "named.toml"
    named.write_text('default_model = "named"')
    assert config({"XDG_CONFIG_HOME": str(tmp_path)}).default_model == "usual"
    assert config({"XDG_CONFIG_HOME": str(tmp_path), "BEDROCK_CONFIG": str(named)}).default_model == "named"


def test_a_relative_directory_of_the_desktop_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bedrock").mkdir()
    (tmp_path / "bedrock" / "config.toml").write_text('default_model = "elsewhere"')
    monkeypatch.chdir(tmp_path)
    made = config({"XDG_CONFIG_HOME": ".", "XDG_STATE_HOME": "."})
    assert (made.default_model, made.data_dir) == ("", Path("/home/ada/.local/state/bedrock"))


def test_every_setting_can_be_a_variable_and_a_line_of_the_file(file: Path) -> None:
    values = {
        "data_dir": "/d", "database": "postgresql://db/bedrock",
        "listen": "[::1]:5", "http_listen": "6", "log_level": "warning", "default_model": "m",
        "drain_seconds": "1.5", "idle_seconds": "2", "max_streams": "7", "reflection": "true",
        "tls_certificate": "/c.pem", "tls_key": "/k.pem",
        "sandbox": "b", "retention_events_days": "30", "retention_events_min": "5", "retention_archived_days": "0.5",
        "retention_audit_days": "7",
        "small_model": "none", "titles": "off", "cpus": "0,2-3", "insecure_behind_proxy": "off",
        "metrics_listen": "9464", "otlp_endpoint": "http://c:4317", "otlp_contents": "gen_ai.output.messages",
        "workspace_protected": ".envrc, a/b", "deny_read": "~/.ssh,/keys", "system_paths": "/usr,/opt",
    }  # fmt: skip
    assert set(values) == set(SETTINGS)
    file.write_text("\n".join(f'{name} = "{value}"' for name, value in values.items()))
    by_variable = config({f"BEDROCK_{name.upper()}": value for name, value in values.items()})
    by_file = config(file=file)
    for name in values:
        assert getattr(by_variable, name) == getattr(by_file, name)
    assert (by_variable.file, by_file.file) == (None, file)
    assert by_file == Config(
        data_dir=Path("/d"), database="postgresql://db/bedrock",
        listen=Listen("::1", 5), http_listen=PortListen("127.0.0.1", 6), log_level="warning",
        default_model="m", drain_seconds=1.5, idle_seconds=2.0, max_streams=7, reflection=True,
        tls_certificate=Path("/c.pem"), tls_key=Path("/k.pem"),
        sandbox="B", retention_events_days=30.0, retention_events_min=5, retention_archived_days=0.5,
        retention_audit_days=7.0,
        small_model="none", titles=False, cpus=Cpus({0, 2, 3}),
        metrics_listen=PortListen("127.0.0.1", 9464), otlp_endpoint="http://c:4317",
        otlp_contents=("gen_ai.output.messages",), workspace_protected=(".envrc", "a/b"), deny_read=("~/.ssh", "/keys"),
        system_paths=("/usr", "/opt"),
        file=file, environ=by_file.environ, origins=by_file.origins,
    )  # fmt: skip


def test_a_network_that_encrypts_may_be_listened_on_without_tls() -> None:
    assert config(listen="0.0.0.0:1", insecure_behind_proxy="yes").insecure_behind_proxy
    assert config(listen="127.0.0.1:1", insecure_behind_proxy="yes").insecure_behind_proxy
    with_tls = {"listen": "0.0.0.0:1", "tls_certificate": "/c.pem", "tls_key": "/k.pem"}
    for useless in ({"listen": "none"}, {"listen": "unix:/s"}, with_tls):
        with pytest.raises(ConfigError, match="--insecure-behind-proxy: allowed only for host:port without TLS"):
            load({"insecure_behind_proxy": "yes", **useless}, {"HOME": "/home/ada"})


PAIR = 'certificate = "/c.pem"\nkey = "/k.pem"'
ADA = "[principals.ada]\nroots = []\n"


def of_file(file: Path, text: str, **flags: str) -> Config:
    file.write_text(text)
    return load(flags, {"HOME": "/home/ada"}, file)


def test_a_file_may_name_several_addresses(file: Path) -> None:
    tables = (
        f'[[listen]]\naddress = "127.0.0.1:1"\n[[listen]]\naddress = "0.0.0.0:2"\nclient_ca = "/ca.pem"\n{PAIR}\n'
        f'[client_certificates]\n"dns:ada.example.org" = "ada"\n{ADA}'
    )
    found = of_file(file, tables)
    assert [each.target for each in found.listeners] == ["127.0.0.1:1", "https://0.0.0.0:2"]
    assert (found.listeners[1].client_ca, found.listeners[1].key) == (Path("/ca.pem"), Path("/k.pem"))
    assert found.client_certificates["dns:ada.example.org"].name == "ada"
    assert [each.target for each in of_file(file, tables, listen="127.0.0.1:3").listeners] == ["127.0.0.1:3"]
    assert of_file(file, tables, listen="none").listeners == ()
    assert [each.target for each in config().listeners] == ["127.0.0.1:7421"]


def test_a_proxy_is_believed_where_it_is_in_front_of_every_address(file: Path) -> None:
    proxied = '[[listen]]\naddress = "0.0.0.0:1"\ninsecure_behind_proxy = true\n'
    assert of_file(file, proxied).behind_proxy
    assert of_file(file, f'{proxied}[[listen]]\naddress = "unix:/s"\n').behind_proxy
    assert not of_file(file, f'{proxied}[[listen]]\naddress = "127.0.0.1:2"\n').behind_proxy
    assert not config().behind_proxy
    assert of_file(file, proxied).reachable
    assert not config().reachable
    assert not config(listen="none").reachable
    assert config(listen="127.0.0.1:1", insecure_behind_proxy="yes").reachable
    encrypted = '[[listen]]\naddress = "127.0.0.1:2"\ncertificate = "/c.pem"\nkey = "/k.pem"\n'
    assert of_file(file, encrypted).reachable
    assert not config(listen="none").behind_proxy


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[listen]]\nport = 1", "listen[1].port: unknown; known keys: address"),
        ("[[listen]]", "listen[1].address: required"),
        ('[[listen]]\naddress = "7421"', "listen[1].address: must be host:port"),
        ('[[listen]]\naddress = "0.0.0.0:1"', "listen[1].address: refusing to listen on 0.0.0.0:1 without TLS"),
        ('[[listen]]\naddress = "127.0.0.1:1"\nkey = "/k"', "listen[1]: certificate and key must be set together"),
        ('[[listen]]\naddress = "127.0.0.1:1"\nclient_ca = "/ca"', "listen[1].client_ca: requires TLS"),
        (f'[[listen]]\naddress = "unix:/s"\n{PAIR}', "listen[1].certificate: a Unix socket needs none"),
        (
            '[[listen]]\naddress = "127.0.0.1:1"\n[[listen]]\naddress = "127.0.0.1:1"',
            "listen[2].address: another table has the same address, 127.0.0.1:1",
        ),
        ('[[listen]]\naddress = "unix:/s"\ninsecure_behind_proxy = true', "allowed only for host:port without TLS"),
        (
            f'[[listen]]\naddress = "[::]:1"\nclient_ca = "/a"\n{PAIR}\n'
            f'[[listen]]\naddress = "[::]:2"\nclient_ca = "/b"\n{PAIR}',
            "listen: every client_ca must be the same",
        ),
        (f'tls_certificate = "/c"\ntls_key = "/k"\n[[listen]]\naddress = "[::]:1"\n{PAIR}', "in [[listen]] tables"),
        (f'[client_certificates]\n"dns:a" = "ada"\n{ADA}', "client_certificates: requires a [[listen]] with client_ca"),
        (
            f'[[listen]]\naddress = "[::]:1"\nclient_ca = "/a"\n{PAIR}\n[client_certificates]\n"dns:a" = "eve"\n{ADA}',
            "client_certificates: 'dns:a' is mapped to 'eve', which is not a principal; principals: ada",
        ),
        (
            f'[[listen]]\naddress = "[::]:1"\nclient_ca = "/a"\n{PAIR}\n[client_certificates]\nada = "ada"\n{ADA}',
            "client_certificates: 'ada' must be uri:, dns:, email: or cn:, followed by a name",
        ),
    ],
)
def test_addresses_that_do_not_fit_together_are_refused(file: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        of_file(file, text)
    assert said in str(refusal.value)


def test_cpus_are_all_or_a_list(file: Path) -> None:
    assert config().cpus is None
    assert config(cpus="all").cpus is None
    assert config(deny_read="none").deny_read == ()
    assert config({"BEDROCK_CPUS": "1"}).cpus == frozenset({1})
    assert of_file(file, "cpus = 0\n").cpus == frozenset({0})


def test_providers_come_from_the_file_and_are_never_shown(file: Path) -> None:
    file.write_text('[providers.local]\nprotocol = "openai-chat"\napi_key = "sk-secret"\n')
    made = config({"ANTHROPIC_API_KEY": "sk-other"}, file)
    assert made.providers["local"]["protocol"] == "openai-chat"
    assert made.environ["ANTHROPIC_API_KEY"] == "sk-other"
    assert "sk-" not in repr(made)


def test_a_file_may_begin_with_a_byte_order_mark(file: Path) -> None:
    file.write_bytes(b'\xef\xbb\xbfdefault_model = "m"\r\n')
    assert config(file=file).default_model == "m"


def test_what_the_file_says_about_models_is_passed_on(file: Path) -> None:
    found = of_file(file, '[models."my-finetune"]\nwindow = 4096\nprice = { input = 1, output = 2 }\n')
    assert found.models == {"my-finetune": {"window": 4096, "price": {"input": 1, "output": 2}}}
    with pytest.raises(ConfigError, match=r"models: must be .* tables"):
        of_file(file, "models = 5\n")


@pytest.mark.parametrize(
    ("text", "target", "local"),
    [
        ("127.0.0.1:0", "127.0.0.1:0", True),
        ("localhost:80", "localhost:80", True),
        ("[::1]:80", "[::1]:80", True),
        ("unix:/run/b.sock", "unix:/run/b.sock", True),
        ("unix:///run/b.sock", "unix:/run/b.sock", True),
    ],
)
def test_addresses(text: str, target: str, local: bool) -> None:
    listen = config(listen=text).listen
    assert listen is not None
    assert (listen, listen.local) == (target, local)


def test_a_server_may_have_no_address_but_its_socket() -> None:
    assert config(listen="none").listen is None


@pytest.mark.parametrize("text", ["0.0.0.0:7421", "[::]:7421", "10.0.0.1:1", "example.org:7421"])
def test_listening_beyond_this_machine_needs_tls(text: str) -> None:
    with pytest.raises(ConfigError, match="refusing to listen"):
        config(listen=text)
    assert config(listen=text, tls_certificate="/c.pem", tls_key="/k.pem").tls


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"listen": "7421"}, "--listen: must be host:port"),
        ({"listen": "127.0.0.1:70000"}, "--listen"),
        ({"listen": "127.0.0.1:x"}, "--listen"),
        ({"listen": ":80"}, "--listen"),
        ({"listen": "unix:relative"}, "absolute"),
        ({"log_level": "loud"}, "--log-level: must be one of debug"),
        ({"drain_seconds": -1}, "--drain-seconds"),
        ({"drain_seconds": "soon"}, "--drain-seconds: must be a number of seconds"),
        ({"max_streams": 2**31}, "--max-streams: must be a whole number, 1 to 2147483647"),
        ({"max_streams": 0}, "--max-streams: must be a whole number, 1 to 2147483647"),
        ({"retention_events_days": -1}, "--retention-events-days: must be a number of days, 0 (no limit) to 36500"),
        ({"retention_archived_days": "long"}, "--retention-archived-days: must be a number of days"),
        ({"retention_events_min": 0}, "--retention-events-min: must be a whole number, 1 to 2147483647"),
        ({"data_dir": "a\0b"}, "--data-dir"),
        ({"data_dir": "data"}, "--data-dir: must be an absolute path, or begin with ~ (it is 'data')"),
        ({"data_dir": "~nobody-of-this-name/d"}, "--data-dir: user not found: '~nobody-of-this-name'"),
        ({"tls_key": "~nobody-of-this-name/k.pem"}, "--tls-key: user not found: '~nobody-of-this-name'"),
        ({"tls_key": "/k.pem"}, "together"),
        ({"sandbox": "C"}, "--sandbox: must be one of auto, A, B, none"),
        ({"cpus": "some"}, "--cpus: must be all, or a list of CPUs such as 1 or 0,2-3"),
        ({"workspace_protected": "a/../b"}, "--workspace-protected[1]: must be a name"),
        ({"deny_read": "keys"}, "--deny-read[1]: must be absolute, or begin with ~"),
        ({"metrics_listen": "unix:/m"}, "--metrics-listen: must be a port, host:port, or none"),
        ({"otlp_endpoint": "collector:4317"}, "--otlp-endpoint: must be http://host:port"),
        ({"otlp_contents": "everything"}, "--otlp-contents[1]: must be one of gen_ai.input.messages, "),
        ({"cpus": "3-1"}, "--cpus: must be all, or a list"),
        ({"cpus": "0-99999999"}, "--cpus: must be all, or a list"),
    ],
)
def test_a_wrong_setting_is_named(flags: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        config(**flags)
    assert said in str(refusal.value)


def test_a_wrong_variable_is_named() -> None:
    with pytest.raises(ConfigError, match="BEDROCK_REFLECTION: must be true or false"):
        config({"BEDROCK_REFLECTION": "maybe"})
    with pytest.raises(ConfigError, match="BEDROCK_CONFIG: user not found: '~nobody-of-this-name'"):
        config({"BEDROCK_CONFIG": "~nobody-of-this-name/c.toml"})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("listen = 5\n", "listen"),
        ("lisen = 'x'\n", "lisen: unknown; did you mean 'listen'? Known keys: data_dir, "),
        ("colour = 'x'\n", "colour: unknown; known keys: data_dir, "),
        ("listen = \n", "not valid TOML"),
        ('data_dir = "data"\n', "data_dir: must be an absolute path"),
        ("default_model = 5\n", "default_model: must be a string"),
        ("providers = 5\n", "providers"),
        ("[providers]\nlocal = 5\n", "providers"),
    ],
)
def test_a_wrong_file_is_named(file: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        of_file(file, text)
    assert str(file) in str(refusal.value)
    assert said in str(refusal.value)


def test_a_file_that_is_named_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        config(file=tmp_path / "none.toml")


@pytest.mark.parametrize(("mode", "refused"), [(0o600, False), (0o644, False), (0o664, True), (0o606, True)])
def test_a_file_that_others_may_change_is_not_believed(file: Path, mode: int, refused: bool) -> None:
    file.write_text('default_model = "m"')
    file.chmod(mode)
    if refused:
        with pytest.raises(
            ConfigError, match=rf"others can write to {file} \(mode 0...\): check its contents, then chmod go-w"
        ):
            config(file=file)
    else:
        assert config(file=file).default_model == "m"


def test_a_file_of_another_user_is_not_believed(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text('default_model = "m"')
    monkeypatch.setattr(os, "geteuid", lambda: 12_345)
    monkeypatch.setattr(os, "fstat", lambda _: os.stat_result((0o100644, 0, 0, 1, 54_321, 0, 0, 0, 0, 0)))
    with pytest.raises(ConfigError, match="belongs to uid 54321, but this process runs as uid 12345"):
        config(file=file)
    monkeypatch.setattr(os, "fstat", lambda _: os.stat_result((0o100644, 0, 0, 1, 0, 0, 0, 0, 0, 0)))
    assert config(file=file).default_model == "m"  # root's


def test_quotas_are_read_key_by_key(file: Path) -> None:
    text = """
        [quotas]
        cost_per_month = 12.5
        [principal_defaults.quotas]
        concurrent_runs = 20
        calls_per_second = 50
        [principals.ada]
        roots = []
        quotas = {concurrent_runs = 50, tokens_per_day = 0}
        [principals.bob]
        roots = []
    """
    quotas = of_file(file, text).quotas
    share = {Quota.CONCURRENT_MODEL_REQUESTS: 750}
    assert quotas.of("") == {Quota.COST_PER_MONTH: 12_500_000}
    assert quotas.of("ada") == {Quota.CONCURRENT_RUNS: 50, Quota.CALLS_PER_SECOND: 50, Quota.TOKENS_PER_DAY: 0, **share}
    assert quotas.of("bob") == {Quota.CONCURRENT_RUNS: 20, Quota.CALLS_PER_SECOND: 50, **share}
    assert quotas.of("local") == {}


TEMPLATE = (
    "[issuers.corp]\nissuer = 'https://a.example'\naudience = 'b'\njwks_file = '/keys'\n"
    "[issuers.corp.template]\nroots = []\n"
)


@pytest.mark.parametrize(
    ("text", "principal", "most"),
    [
        ("", "ada", None),
        ("[quotas]\nconcurrent_model_requests = 32\n", "ada", None),
        (f"{ADA}", "ada", 750),
        (f"{ADA}[quotas]\nconcurrent_model_requests = 32\n", "ada", 24),
        (f"{ADA}[quotas]\nconcurrent_model_requests = 2\n", "ada", 1),
        (f"{ADA}[quotas]\nconcurrent_model_requests = 1\n", "ada", 1),
        (f"{ADA}[principal_defaults.quotas]\nconcurrent_model_requests = 0\n", "ada", 0),
        (f"{ADA}quotas = {{concurrent_model_requests = 9}}\n", "ada", 9),
        (f"{TEMPLATE}[quotas]\nconcurrent_model_requests = 32\n", "corp:zoe", 24),
        (f"{TEMPLATE}quotas = {{concurrent_model_requests = 3}}\n", "corp:zoe", 3),
        (f"{ADA}{TEMPLATE}quotas = {{concurrent_model_requests = 3}}\n", "ada", 750),
        (f"{TEMPLATE}quotas = {{streams = 3}}\n", "corp:zoe", 750),
    ],
)
def test_no_principal_among_several_has_all_model_requests_unless_the_file_says_so(
    file: Path, text: str, principal: str, most: int | None
) -> None:
    quotas = of_file(file, text).quotas
    assert quotas.of(principal).get(Quota.CONCURRENT_MODEL_REQUESTS) == most
    assert Quota.CONCURRENT_MODEL_REQUESTS not in quotas.of("local")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("quotas = 3", "quotas: must be a table"),
        ("[quotas]\nruns = 3", "quotas.runs: unknown; known keys: concurrent_runs, "),
        ("[quotas]\nconcurrent_runs = -1", "quotas.concurrent_runs: must be a whole number, 0 for no limit"),
        ("[quotas]\nconcurrent_runs = 1.5", "quotas.concurrent_runs: must be a whole number"),
        ("[quotas]\nstreams = true", "quotas.streams: must be a whole number"),
        ("[quotas]\ncost_per_day = 'much'", "quotas.cost_per_day: must be an amount in dollars"),
        ("[quotas]\ncost_per_day = inf", "quotas.cost_per_day: must be an amount in dollars"),
        ("principal_defaults = 3", "principal_defaults: must be a table"),
        ("[principal_defaults]\nmodes = []", "principal_defaults.modes: unknown; known keys: quotas"),
        ("[principals.ada]\nroots = []\nquotas = 3", "principals.ada.quotas: must be a table"),
        (f"{TEMPLATE}quotas = {{runs = 3}}", "issuers.corp.template.quotas.runs: unknown; known keys: concurrent_runs"),
        ("[principals.ada.quotas]\nruns = 1", "principals.ada.quotas.runs: unknown; known keys: concurrent_runs"),
    ],
)
def test_a_wrong_quota_is_named(file: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=f"^{file}: {said}"):
        of_file(file, text)


def test_a_missing_extra_is_named_also_if_the_package_of_its_module_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^otlp_endpoint: requires the extra `otel`"):
        Config(data_dir=tmp_path).check_extra("otlp_endpoint", "otel", "no_such_package.exporter.otlp")


# `bedrock config check`: what it shows, what it finds, and that it changes nothing.


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("BEDROCK_CONFIG", "BEDROCK_DATA_DIR", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def check(*arguments: str, **env: str) -> Result:
    return CliRunner(env=env).invoke(cli.config, ["check", *arguments])


def check_file(file: Path, text: str, **env: str) -> Result:
    file.write_text(text)
    return check("--config", str(file), **env)


def test_every_setting_is_shown_with_its_origin(home: Path, file: Path) -> None:
    file.write_text("drain_seconds = 3\ntitles = false\n")
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
        file.write_text("\n".join(cli.described(settings)))
        again = load({}, {"HOME": str(home)}, file)
        assert replace(again, file=None, environ=settings.environ, origins=settings.origins) == settings


def test_nothing_is_created_and_no_key_is_shown(home: Path) -> None:
    done = check(ANTHROPIC_API_KEY="sk-very-secret")
    assert done.exit_code == 0
    assert "provider anthropic: anthropic, key from ANTHROPIC_API_KEY" in done.output
    assert "sk-very-secret" not in done.output
    assert list(home.iterdir()) == []


def test_every_address_is_shown(file: Path) -> None:
    done = check_file(file, '[[listen]]\naddress = "127.0.0.1:1"\n[[listen]]\naddress = "unix:/run/b.sock"\n')
    assert "# listen is set by [[listen]] tables: 127.0.0.1:1, unix:/run/b.sock\n" in done.output


def test_what_principals_read_is_shown(home: Path, file: Path) -> None:
    (home / "ada").mkdir()
    board = '[principals.board]\nroots = []\nrole = "reader"\n'
    done = check_file(file, f'[principals.ada]\nroots = ["{home}/ada"]\n{board}')
    assert f"principal ada: user, reads {home}/ada\n" in done.output
    assert "principal board: reader, reads no directories\n" in done.output


def test_what_principals_name_and_nobody_has_is_noted(home: Path, file: Path) -> None:
    told = f"principal ada: user, reads {home}, {home}/none; there is no directory {home}/none, no MCP server wbe"
    ada = f'[principals.ada]\nroots = ["{home}", "{home}/none"]\nmcp_servers = ["web", "wbe"]\n'
    done = check_file(file, f'{ada}[[mcp_servers]]\nname = "web"\nurl = "https://mcp.test/"\nenabled = false\n')
    assert told in done.output.splitlines()


def test_quotas_are_shown_as_they_count_for_each(file: Path) -> None:
    all_together = "[quotas]\ncost_per_month = 500\n[principal_defaults.quotas]\nconcurrent_runs = 2\nstreams = 9\n"
    done = check_file(file, f"{all_together}{ADA}quotas = {{ concurrent_runs = 5 }}\n[principals.bob]\nroots = []\n")
    assert [line for line in done.output.splitlines() if line.startswith("quotas ")] == [
        "quotas of all together: cost_per_month $500.00",
        "quotas of each principal: concurrent_model_requests 750, concurrent_runs 2, streams 9",
        "quotas of ada: concurrent_model_requests 750, concurrent_runs 5, streams 9",
    ]


def test_a_check_names_a_wrong_setting() -> None:
    done = check(BEDROCK_LISTEN="nowhere")
    assert (done.exit_code, "BEDROCK_LISTEN: must be host:port" in done.output) == (2, True)


ODD = "\udcff"
"""How Python reads a byte of the environment that is no UTF-8."""


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("BEDROCK_DATABASE", f"postgresql://{ODD}", "must be valid UTF-8"),
        ("BEDROCK_DEFAULT_MODEL", ODD, "must be valid UTF-8"),
        ("BEDROCK_OTLP_ENDPOINT", f"http://{ODD}", "must be valid UTF-8"),
        ("BEDROCK_HTTP_LISTEN", f"{ODD}:80", "must be a port, host:port, or none"),
        ("BEDROCK_LISTEN", f"{ODD}:80", "must be host:port (port 0 for any free port), unix:/path, or none"),
        ("BEDROCK_HTTP_LISTEN", "a b:80", "must be a port, host:port, or none"),
    ],
)
def test_a_variable_that_is_no_text_is_named_in_one_line(variable: str, value: str, said: str) -> None:
    done = check(**{variable: value})
    assert (done.exit_code, done.output) == (2, f"error: {variable}: {said}\n")


@pytest.mark.parametrize("option", ["--http", "--metrics-listen"])
def test_an_option_is_named_as_it_was_typed(option: str) -> None:
    done = CliRunner().invoke(cli.serve, [option, "foo"])
    assert (done.exit_code, done.output) == (2, f"error: {option}: must be a port, host:port, or none\n")


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ('class = "a:b\\n"', "authorizer.class: must be package.module:Class"),
        ('"a\\nb" = 1', "authorizer.a b: unknown; known keys: class, timeout_seconds, options"),
    ],
)
def test_what_is_wrong_with_the_authorizer_is_said_in_one_line(file: Path, table: str, said: str) -> None:
    done = check_file(file, f"[authorizer]\n{table}\n")
    assert (done.exit_code, done.output) == (2, f"error: {file}: {said}\n")


@pytest.mark.parametrize(
    ("env", "said"), [({"BEDROCK_CPUS": "8000"}, "cpus"), ({"BEDROCK_DEFAULT_MODEL": "no-such-model"}, "default_model")]
)
def test_what_this_machine_cannot_give_is_named(env: dict[str, str], said: str) -> None:
    done = check(**env)
    assert (done.exit_code, said in done.output) == (2, True)


def test_a_certificate_that_is_none_is_found(home: Path) -> None:
    (home / "c.pem").write_text("no certificate")
    done = check(BEDROCK_TLS_CERTIFICATE=str(home / "c.pem"), BEDROCK_TLS_KEY=str(home / "c.pem"))
    assert (done.exit_code, "not a PEM certificate and its private key" in done.output) == (1, True)


def test_a_data_directory_that_others_may_write_to_is_found(home: Path) -> None:
    (home / "data").mkdir()
    (home / "data").chmod(0o777)
    done = check("--data-dir", str(home / "data"))
    assert (done.exit_code, "others may have put files" in done.output) == (1, True)
    (home / "data").chmod(0o755)  # the server restricts this one when it starts
    assert check("--data-dir", str(home / "data")).exit_code == 0
    assert (home / "data").stat().st_mode & 0o777 == 0o755


def test_logins_at_mcp_servers_are_told(home: Path, file: Path) -> None:
    (home / "data").mkdir(mode=0o700)
    file.write_text('[[mcp_servers]]\nname = "web"\nurl = "https://mcp.test/"\n')
    told = "MCP server web: https://mcp.test/"
    asked = ("--config", str(file), "--data-dir", str(home / "data"))
    assert f"{told}, not logged in: if it requires a login, run `bedrock mcp login web`\n" in check(*asked).output
    url = {"url": "https://mcp.test/", "resource": "r", "token_endpoint": "t", "issuer": "i", "client_id": "c"}
    stored = home / "data" / "mcp-logins.json"
    stored.write_text(json.dumps({"web": {"id": "1", "access_token": "a-secret", **url}}))
    stored.chmod(0o600)
    done = check(*asked).output
    assert f"{told}, logged in\n" in done
    assert "a-secret" not in done
    stored.chmod(0o644)
    assert f"{told}, but its login cannot be used: {stored} can be read by others" in check(*asked).output


def test_what_is_set_of_models_is_told_with_its_prices(file: Path) -> None:
    done = check_file(file, '[models."mine-"]\nwindow = 64000\nprice = { input = 1.5, output = 6 }\n')
    assert "model mine-: sets window; price of input $1.5, output $6\n" in done.output


def test_mcp_servers_are_named_and_their_mistakes_found(file: Path) -> None:
    files = '[[mcp_servers]]\nname = "files"\ncommand = ["mcp-files", "$NONE"]\nenvironment = { KEY = "$NONE" }\n'
    done = check_file(file, files, NONE="a secret of theirs")
    assert done.exit_code == 0
    assert "MCP server files: mcp-files, not found on PATH\n" in done.output
    assert "a secret of theirs" not in done.output
    wrong = check("--config", str(file))
    assert wrong.exit_code == 2
    assert f"{file}: mcp_servers.files.environment.KEY: NONE is not set" in wrong.output


def test_approval_rules_are_told_and_their_mistakes_found(file: Path) -> None:
    done = check_file(file, '[[approval_rules]]\naction = "deny"\ncommand_prefix = "git push"\n')
    assert (done.exit_code, "approval rule 1: deny commands that begin with 'git push'" in done.output) == (0, True)
    tools = ("bash", "mcp__a__b", "bsh")
    done = check_file(file, "".join(f'[[approval_rules]]\naction = "deny"\ntool = "{tool}"\n' for tool in tools))
    told = [line.partition(": ")[2] for line in done.output.splitlines() if " rule " in line]
    odd = "deny the tool bsh, not one of the server's tools: only a client's tool can match"
    assert told == ["deny the tool bash", "deny the tool mcp__a__b", odd]
    wrong = check_file(file, '[[approval_rules]]\naction = "allow"\ncommand_prefix = "sudo make"\n')
    assert wrong.exit_code == 2
    assert f"{file}: approval_rules[1].command_prefix: must not begin with sudo" in wrong.output


def test_what_clients_may_name_is_told_and_its_mistakes_found(file: Path) -> None:
    done = check_file(file, '[mcp_from_clients]\nprograms = true\nurls = ["https://mcp.example.com"]\n')
    assert "MCP servers of clients: programs, https://mcp.example.com:443" in done.output
    wrong = check_file(file, '[mcp_from_clients]\nurls = ["https://mcp.example.com/path"]\n')
    assert wrong.exit_code == 2
    assert f"{file}: mcp_from_clients.urls: must end with the host" in wrong.output
