"""The HTTP gateway: a client of the gRPC server that serves its contract as JSON over HTTP, a separate process."""
