"""Tools of an agent that run in the client program: declarations, arguments of calls, and results."""
