"""The rules: one module per state, each with one function `when_<state>` that handles every event."""
