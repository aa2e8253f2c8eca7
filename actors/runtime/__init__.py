"""The infrastructure that all actors share: mailbox, timers, threads, clock, quotas and services."""
