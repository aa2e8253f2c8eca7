"""OpenAI Responses, and the dialects of other servers."""
