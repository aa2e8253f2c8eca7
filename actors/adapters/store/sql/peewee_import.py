"""Import peewee without the drivers of other databases than SQLite."""

from __future__ import annotations

import sys
from importlib import import_module

_MODULES = ("peewee", "playhouse.migrations")
_DRIVERS = ("psycopg", "psycopg2", "psycopg2cffi", "pymysql", "MySQLdb")


def import_peewee() -> None:
    """Import peewee, but not the drivers that it would load wherever they are installed: a quarter of a second, 8 MiB.

    Nobody may import a driver meanwhile: call it before there are threads.
    """
    hidden = [name for name in _DRIVERS if name not in sys.modules]
    missing = dict.fromkeys(hidden)
    sys.modules.update(missing)  # type: ignore[arg-type] # None: an import of it fails
    try:
        for module in _MODULES:
            import_module(module)
    finally:
        for name in hidden:
            del sys.modules[name]
