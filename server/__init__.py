"""The gRPC server: turns calls of the gRPC API into commands for the actors and into reads of the store."""
