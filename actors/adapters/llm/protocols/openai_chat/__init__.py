"""The wire protocol OpenAI Chat Completions, with the dialects of other servers."""
