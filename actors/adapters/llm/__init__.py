"""Adapters for language models: the catalogue, the HTTP transport, the wire protocols, and the demo model.

Adapters send every request once and can cancel it in any phase; the actors send it again if it failed. The server uses
this package only through a `catalog.Catalog`, which it builds at its start.
"""
