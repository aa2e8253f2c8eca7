"""How the tables came to be; what was released is never edited."""
