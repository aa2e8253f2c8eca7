"""What every actor needs: mailbox, timers, clock, services."""
