"""The methods of `Conversation`, in one module for each subject."""
