"""Rules that apply to all calls of the gRPC API: validation, errors, limits, resource names, pagination and filters."""
