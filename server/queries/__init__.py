"""Answers the calls of the gRPC API that only read the store. The reads run on a pool of threads."""
