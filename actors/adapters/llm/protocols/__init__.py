"""The wire protocols: how requests are encoded and answers are parsed."""
