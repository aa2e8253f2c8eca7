"""Code shared by actors, adapters and the server: JSON Schemas, text of terminals, settings, resources."""
