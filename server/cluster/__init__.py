"""A cluster of servers (nodes) that share one store. Each call is served by the node that owns its conversation."""
