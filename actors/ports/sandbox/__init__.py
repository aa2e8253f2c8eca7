"""Programs that run in a sandbox, each in a process tree that can be killed."""
