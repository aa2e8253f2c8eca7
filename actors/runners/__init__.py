"""What the effects of a transition start, each on threads of its own."""
