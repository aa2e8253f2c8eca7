"""What actors say to each other."""
