"""The PostgreSQL implementation of the store, which several servers (a cluster) can share."""
