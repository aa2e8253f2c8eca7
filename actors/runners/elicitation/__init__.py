"""What running tools ask people."""
