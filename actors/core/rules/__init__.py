"""The rules of the state machine: one module per state with a function `when_<state>` that handles every event.

`internal_faults` and `tool_questions` handle events that do not belong to a single state.
"""
