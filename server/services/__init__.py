"""The implementations of the gRPC services, and the gRPC server that runs them."""
