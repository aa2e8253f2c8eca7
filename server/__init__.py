"""The gRPC server: turns gRPC API calls into commands for the actors and reads of the store."""
