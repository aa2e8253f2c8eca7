"""The gRPC server: the wire contract in front of the actors."""
