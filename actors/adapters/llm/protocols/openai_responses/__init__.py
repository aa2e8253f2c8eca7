"""The wire protocol OpenAI Responses, with the differences of other servers that implement it."""
