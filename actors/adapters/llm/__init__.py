"""Adapters for language models: the catalogue, the HTTP transport, the wire protocols, and the demo model.

Adapters send every request once and can cancel it in any phase; if it fails, the actors send it again. The server uses
this package only through a `catalog.Catalog`, which it builds at startup.
"""
