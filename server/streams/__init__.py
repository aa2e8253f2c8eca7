"""The server's streams: each watcher is a cursor over the event log, woken by the event hub."""
