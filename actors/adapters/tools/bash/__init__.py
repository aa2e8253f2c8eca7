"""bash: shell commands, those that outlive their call as jobs with handles, and what guards against accidents."""
