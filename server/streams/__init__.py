"""Long streams: a cursor for each watcher, woken by the event hub."""
