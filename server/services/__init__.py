"""The gRPC services, and the server that serves them."""
