"""The tool bash: shell commands, background jobs with handles, and a guard that refuses destructive commands."""
