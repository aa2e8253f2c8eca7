"""OpenAI Chat Completions, and the dialects of other servers."""
