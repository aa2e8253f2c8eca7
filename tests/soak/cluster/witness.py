"""A witness in the database, which no node knows of: triggers that write down whoever writes what another one owns."""

from urllib.parse import quote

import psycopg

from actors.adapters.store.postgres.engine import address_of, migrate

SETTING = "witness.process"
_TABLES = f"""
CREATE TABLE witness_nodes (incarnation bigint PRIMARY KEY, process text NOT NULL);
CREATE TABLE witness_strangers (process text, conversation_id text NOT NULL, step bigint NOT NULL, owner bigint);
CREATE FUNCTION witness_join() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO witness_nodes VALUES (NEW.incarnation, current_setting('{SETTING}'));
    RETURN NULL;
END $$;
CREATE FUNCTION witness_write() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO witness_strangers
    SELECT current_setting('{SETTING}', true), NEW.conversation_id, NEW.step, owner
    FROM conversations LEFT JOIN witness_nodes ON incarnation = owner
    WHERE id = NEW.conversation_id AND process IS DISTINCT FROM current_setting('{SETTING}', true);
    RETURN NULL;
END $$;
CREATE TRIGGER witness AFTER INSERT ON nodes FOR EACH ROW EXECUTE FUNCTION witness_join();
CREATE TRIGGER witness AFTER INSERT ON log FOR EACH ROW EXECUTE FUNCTION witness_write();
"""
_STRANGERS = "SELECT process, conversation_id, step, owner FROM witness_strangers LIMIT 20"


def make_watched(url: str) -> None:
    """Make the tables of the store in an empty database, and the witness."""
    migrate(address_of(url))
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(_TABLES.encode())


def introduced(url: str, process: str) -> str:
    """Return the address of the database for a process with a name that no other has."""
    return f"{url}?options={quote(f'-c {SETTING}={process}')}"


def strangers(url: str) -> list[str]:
    """What was written to conversations by processes that did not own them."""
    with psycopg.connect(url) as connection:
        found = connection.execute(_STRANGERS.encode()).fetchall()
    return [f"{process} wrote step {step} of {name}, which node {owner} owns" for process, name, step, owner in found]
