"""Who calls, and what they may do: tokens, principals, roles."""
