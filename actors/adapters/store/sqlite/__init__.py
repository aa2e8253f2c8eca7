"""The SQLite implementation of the store port."""

from actors.adapters.store.sql.peewee_import import import_peewee

import_peewee()
