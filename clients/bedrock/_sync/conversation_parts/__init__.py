"""The methods of a conversation, in parts by what they are about."""
