"""The wire protocol OpenAI Responses, with the dialects of other servers."""
