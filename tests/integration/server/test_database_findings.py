"""What `bedrock doctor` and `bedrock config check` say of the database that the settings name."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import psycopg
import pytest
from click.testing import CliRunner

from actors.adapters.store.postgres.engine import address_of, migrate
from server.app.start_checks import DatabaseFinding, findings_of_settings
from server.cli import config
from tests.support.postgres import PASSWORD_USER, PostgresServer

SECRET = "s3cret-of-nobody"
NODE = (
    "INSERT INTO nodes (incarnation, name, address, version, labels, session, lease_seconds, expires)"
    " VALUES (%s, %s, %s, '', '{}', true, %s, 'infinity'::timestamptz)"
)


@pytest.fixture
def url(postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An empty database, which the settings name."""
    name = postgres.create()
    for variable in ("BEDROCK_CONFIG", "XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("BEDROCK_DATABASE", postgres.url(name))
    yield postgres.url(name)
    postgres.drop(name)


def found(file: Path | None = None) -> dict[str, DatabaseFinding]:
    return {each.subject: each for each in findings_of_settings(str(file) if file else None)}


def add_node(url: str, number: int, name: str, address: str, lease: float) -> None:
    """Let a node live that nobody declares dead."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(NODE, (number, name, address, lease))
        connection.execute(
            "UPDATE nodes SET expires = clock_timestamp() + make_interval(secs => %s) WHERE incarnation = %s",
            (1.5 * lease, number),
        )


def clustered(folder: Path, lease: float) -> Path:
    """A settings file of a node."""
    token = folder / "nodes.token"
    token.write_text("n" * 43)
    token.chmod(0o600)
    file = folder / "bedrock.toml"
    table = f'address = "127.0.0.1:7499"\ntoken_file = "{token}"\nlease_seconds = {lease}\nname = "here"\n'
    file.write_text(f"[cluster]\n{table}")
    file.chmod(0o600)
    return file


def test_a_full_disk_is_found_where_the_server_keeps_its_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BEDROCK_DATA_DIR", str(tmp_path / "before-the-first-start"))
    assert found() == {}
    monkeypatch.setenv("BEDROCK_DATA_DIR", str(tmp_path))
    assert found() == {}
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=25, f_frsize=4096))
    disk = found()["disk"]
    assert (disk.level, disk.text) == ("fail", f"only 100 KiB free on the file system of {tmp_path}")
    assert disk.advice == "Free at least 8 MiB for the server."


def test_a_database_that_can_serve_is_described_and_left_as_it_is(url: str) -> None:
    first = found()
    assert [each.level for each in first.values()] == ["ok"] * 4
    assert "PostgreSQL 1" in first["database"].text
    assert "UTF8, writable" in first["database"].text
    assert first["tables"].text == "none yet: the first start creates them in schema public"
    assert "this machine's" in first["clock"].text
    assert first["nodes"].text == "none running"
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone() == (0,)
    migrate(address_of(url))
    assert found()["tables"].text == "up to date, in schema public"


def test_what_would_keep_a_server_from_starting_is_said_with_what_to_do(url: str, tmp_path: Path) -> None:
    migrate(address_of(url))
    add_node(url, 1, "one", "10.0.0.1:7421", 20)
    alone = found()["nodes"]
    assert (alone.level, alone.text) == ("fail", "one at 10.0.0.1:7421 (lease of 20 s)")
    assert "need a [cluster] table" in alone.advice
    assert found(clustered(tmp_path, 20))["nodes"].level == "ok"
    differs = found(clustered(tmp_path, 5))["nodes"]
    assert (differs.level, "is 5 here, but 20 on one; stop all" in differs.advice) == ("fail", True)
    checked = CliRunner().invoke(config, ["check", "--config", str(tmp_path / "bedrock.toml")])
    assert (checked.exit_code, "is 5 here, but 20 on one" in checked.output) == (1, True)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("UPDATE schema_migration SET name = '9999_later' WHERE name LIKE '0001%%'")
        newer = found()["tables"]
        assert (newer.level, "9999_later" in newer.text) == ("fail", True)
        connection.execute("DELETE FROM schema_migration WHERE name LIKE '9999%%'")
        assert found()["tables"].level == "warn"
        connection.execute(f"ALTER DATABASE {_name(url)} SET default_transaction_read_only = on".encode())

    read_only = found()["database"]
    assert (read_only.level, "read-only" in read_only.text) == ("fail", True)


def test_a_user_who_may_make_no_tables_is_told_what_to_grant(
    url: str, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As PostgreSQL 15 has it for all but the owner of a database."""
    name, user = _name(url), "grantless"
    postgres.execute(f"CREATE USER {user}")
    try:
        postgres.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC", name.strip('"'))
        monkeypatch.setenv("BEDROCK_DATABASE", postgres.url(name.strip('"'), user))
        tables = found()["tables"]
    finally:
        postgres.execute(f"DROP USER {user}")
    assert (tables.level, "cannot create tables in public" in tables.text) == ("fail", True)
    assert "GRANT CREATE ON SCHEMA" in tables.advice


def _name(url: str) -> str:
    return '"' + address_of(url).parameters["dbname"] + '"'


@pytest.mark.parametrize(
    ("of", "advice"),
    [
        ("nobody listens", "Check that PostgreSQL is running there"),
        ("no such database", "createdb"),
        ("wrong password", "~/.pgpass"),
    ],
)
def test_a_database_that_cannot_be_opened_says_what_to_do_and_no_password(
    of: str, advice: str, url: str, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as bound:  # and not listening: refused at once
        bound.bind(("127.0.0.1", 0))
        urls = {
            "nobody listens": f"postgresql://ann:{SECRET}@127.0.0.1:{bound.getsockname()[1]}/none",
            "no such database": postgres.url("none", "postgres", SECRET),
            "wrong password": postgres.url(_name(url).strip('"'), PASSWORD_USER, SECRET),
        }
        monkeypatch.setenv("BEDROCK_DATABASE", urls[of])
        (finding,) = found().values()
        checked = CliRunner().invoke(config, ["check"])
    assert (finding.level, finding.subject) == ("fail", "database")
    assert advice in finding.advice
    assert (checked.exit_code, advice in checked.output) == (1, True)
    assert SECRET not in str(finding) + checked.output
    assert "?" not in finding.text, "it asks what it should tell"


def test_without_a_database_there_is_nothing_to_say_and_wrong_settings_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("BEDROCK_CONFIG", raising=False)
    assert found() == {}
    data = tmp_path / ".local" / "state" / "bedrock"
    data.mkdir(parents=True)
    (data / "moved").write_text("postgresql://db.example/bedrock\n")
    assert "were moved to postgresql://db.example/bedrock" in found()["database"].text
    (data / "moved").unlink()
    file = tmp_path / "wrong.toml"
    file.write_text("data_base = 3\n")
    file.chmod(0o600)
    assert found(file)["settings"].level == "fail"
