"""Values of the operator's settings: which are valid, and how they are parsed."""
