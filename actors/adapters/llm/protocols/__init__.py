"""The wire protocols of model providers: how requests are encoded and answers are parsed.

`catalog.py` contains the table of protocols, `provider.py` their names and traits.
"""
