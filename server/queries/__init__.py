"""Answers the read-only calls of the gRPC API. The reads run on a pool of threads."""
