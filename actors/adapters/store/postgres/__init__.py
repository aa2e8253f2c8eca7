"""The store on PostgreSQL, which several servers share: a cluster."""
