"""The files of a working directory."""
