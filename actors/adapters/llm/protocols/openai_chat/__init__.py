"""The wire protocol OpenAI Chat Completions, with the differences of other servers that implement it."""
