"""Imports peewee without optional modules that it would load, too: drivers of other databases, a second SQLite."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec

_MODULES = ("peewee", "playhouse.migrations")
_UNUSED = ("psycopg", "psycopg2", "psycopg2cffi", "pymysql", "MySQLdb", "playhouse.cockroachdb")
_PYTHONS_SQLITE = "sqlite3"


def import_peewee() -> None:
    """Import peewee while its optional modules appear to be missing, which saves 0.25 s and 9 MiB.

    These are database drivers and, if pysqlite3 is installed, Python's own sqlite3. No other thread may import one of
    them during the call, so call this before threads are started.
    """
    unused = (*_UNUSED, _PYTHONS_SQLITE) if find_spec("pysqlite3") else _UNUSED
    hidden = [name for name in unused if name not in sys.modules]
    missing = dict.fromkeys(hidden)
    sys.modules.update(missing)  # type: ignore[arg-type] # an import fails if the value is None
    try:
        for module in _MODULES:
            import_module(module)
    finally:
        for name in hidden:
            del sys.modules[name]
