"""What a program in workspace mode may write: which directories can be a workspace, and who writes there."""
