"""The infrastructure of all actors: mailbox, timers, clock, services."""
