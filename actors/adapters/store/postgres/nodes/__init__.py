"""Membership on PostgreSQL: which nodes share the database, which of them live, and who takes over from the dead.

Each node has a row with a lease, which it renews, and holds a lock of its session. Any node may declare another one
dead whose lease has run out, or whose process is gone beyond doubt; what dead nodes owned is taken by the living. Every
rule that the model of the protocol (tests/property/lease_protocol.py) names is kept here or in the tool hosts; the
docstrings name it where it is kept.
"""
