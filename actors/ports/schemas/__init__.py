"""How JSON Schemas of clients are kept from taking any time."""
