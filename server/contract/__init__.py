"""Rules of the gRPC API for all calls: validation, errors, limits, resource names, pagination and filters."""
