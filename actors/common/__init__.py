"""What actors, adapters and the server compute alike: JSON Schemas, text of terminals, settings, resources."""
