"""The implementation of the store on SQLite."""

from actors.adapters.store.sql.peewee_import import import_peewee

import_peewee()
