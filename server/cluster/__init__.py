"""A cluster of servers (nodes) that share one store: each call is served by the node that owns its conversation."""
