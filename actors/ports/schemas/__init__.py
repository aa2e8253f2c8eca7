"""JSON Schemas of clients, the values that fit them, and how much work it is to compare the two."""
