"""The rules of the state machine: a function `when_<state>` per state handles every event.

Functions with other names handle events that do not belong to a single state.
"""
