"""What the settings of the server and of its adapters have in common."""
