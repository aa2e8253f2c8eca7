"""The HTTP gateway: a separate process, a client of the gRPC server, that serves the contract as JSON over HTTP."""
