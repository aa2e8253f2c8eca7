"""Authentication and authorization of callers: tokens, principals, roles and quotas."""
