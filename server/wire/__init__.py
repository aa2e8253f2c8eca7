"""Conversion between the core's values and the contract's messages. Nothing here reads a store, a clock or a socket."""
