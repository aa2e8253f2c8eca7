"""The demo model: a script that uses real tools, for trying Bedrock without a provider."""
