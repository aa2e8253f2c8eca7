"""Rules of the contract for all calls: validation, errors, limits, resource names, pagination, authentication."""
