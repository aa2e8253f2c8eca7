"""Converts between the values that actors use and the protobuf messages of the gRPC API.

Nothing here reads a store, a clock or a socket.
"""
