"""Adapters for language models: catalogue, HTTP transport, wire protocols, and the demo model.

Every request is tried once and can be cancelled in any phase; the actors do the retries. The server builds a
`catalog.Catalog`, through which everything else is reached.
"""
