"""Rules that every request and response keeps: validation, errors, limits, names, pages, callers."""
