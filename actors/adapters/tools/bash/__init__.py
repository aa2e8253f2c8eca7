"""The bash tool: shell commands, background jobs with handles, and a guard that refuses destructive commands."""
