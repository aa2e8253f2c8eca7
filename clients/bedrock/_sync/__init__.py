"""The blocking client. Except for a few modules, `make client-sync` generates it from `bedrock._async`."""
