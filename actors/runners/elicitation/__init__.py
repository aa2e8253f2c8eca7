"""Questions that running tools ask people (elicitation)."""
