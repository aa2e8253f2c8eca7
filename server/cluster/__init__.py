"""Several servers over one store: calls go to the node that owns their conversation."""
