"""Conversation stores on SQLite and PostgreSQL, with one set of tables, statements and changes for both.

Peewee is imported here, without the optional modules that it would import if they are installed: drivers of other
databases and, if pysqlite3 is installed, Python's own copy of SQLite.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec

_MODULES = ("peewee", "playhouse.migrations")
_UNUSED = ("psycopg", "psycopg2", "psycopg2cffi", "pymysql", "MySQLdb", "playhouse.cockroachdb")
_PYTHONS_SQLITE = "sqlite3"


def import_peewee() -> None:
    """Import peewee as if its optional modules were missing, which saves 0.25 s and 9 MiB.

    These modules are database drivers and, if pysqlite3 is installed, Python's own sqlite3. No other thread may import
    them during this call, so make it before starting threads.
    """
    unused = (*_UNUSED, _PYTHONS_SQLITE) if find_spec("pysqlite3") else _UNUSED
    hidden = [name for name in unused if name not in sys.modules]
    missing = dict.fromkeys(hidden)
    sys.modules.update(missing)  # type: ignore[arg-type] # the value None makes an import fail
    try:
        for module in _MODULES:
            import_module(module)
    finally:
        for name in hidden:
            del sys.modules[name]


import_peewee()
