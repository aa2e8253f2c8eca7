"""What the settings of an operator may be."""
