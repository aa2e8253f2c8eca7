"""The gRPC server: translates calls of the gRPC API into commands for the actors and reads of the store."""
