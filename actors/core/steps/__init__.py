"""The steps that several states have in common."""
