"""The rules: a module per state, each with one function `when_<state>` that handles every event, and one for faults."""
