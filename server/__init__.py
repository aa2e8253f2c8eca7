"""The gRPC server: translates calls of the wire contract into commands to the actors, and reads of the store."""
