"""The methods of `AsyncConversation`, in one module for each subject."""
