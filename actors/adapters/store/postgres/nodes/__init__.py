"""Cluster membership on PostgreSQL: the nodes that share the database, failure detection and take-over.

Each node has a row with a lease, which it renews, and holds an advisory lock in its session. Any node may declare
another one dead whose lease has expired, or whose process is certainly gone; the living nodes take over the dead nodes'
conversations. The rules of the protocol have names in its model (tests/property/lease_protocol.py), in capital letters;
the docstrings here cite them where they are implemented.
"""
