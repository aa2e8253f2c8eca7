"""The server's streams of events. Each stream is a cursor over the event log, woken by the event hub."""
