"""The blocking client, generated from `bedrock._async` by `make client-sync`."""
