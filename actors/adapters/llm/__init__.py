"""Model adapters: each speaks one wire protocol, tries once, and can be stopped in every phase.

`catalog.Catalog` is what `server.app` builds; everything else is reached through it.
"""
