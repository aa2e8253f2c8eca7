"""Adapters for language models: one module per concern, one package per wire protocol.

Every request is tried once and can be cancelled in any phase; the actors do the retries. The server builds a
`catalog.Catalog`, and everything else is reached through it.
"""
