"""JSON Schemas of clients: parsing of JSON, validation of values, and limits on the work of a validation."""
