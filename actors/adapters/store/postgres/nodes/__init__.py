"""Cluster membership on PostgreSQL: the servers (nodes) that share the database, failure detection and take-over.

Each node has a row with a lease (the time until which the node counts as alive) and keeps renewing it. It also holds an
advisory lock in its database session. Any node may declare another node dead if that node's lease has expired or its
process is certainly gone. The living nodes take over the dead nodes' conversations. tests/property/lease_protocol.py
contains a model of this protocol. The model names the protocol's rules in capital letters, such as EXPIRED; the
docstrings here cite these names.
"""
