"""The pure core: the data of a conversation and its state machine.

Nothing in here can wait, read a clock, generate a random number, log or do I/O. Times come from events, ids from
counters in the state. `transition.transition` is the only way from one state to the next.
"""
