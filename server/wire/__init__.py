"""Conversion between the core's values and protobuf messages. Nothing here reads a store, a clock or a socket."""
