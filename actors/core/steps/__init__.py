"""The steps of transitions that several states have in common."""
