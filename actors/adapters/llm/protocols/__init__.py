"""The wire protocols of model providers: how requests are encoded and answers are parsed.

`catalog.py` has the table of them, `provider.py` their names and traits.
"""
