"""The wire protocols of model providers: how requests are encoded and answers are parsed."""
