"""Adapters for language models: the catalogue, the HTTP transport, the wire protocols, and the demo model.

Adapters try every request once and can cancel it in any phase; the actors do the retries. The server builds a
`catalog.Catalog`, through which it reaches everything else.
"""
