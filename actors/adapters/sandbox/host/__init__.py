"""The program that runs one tool: its host, init and main, one after the other; see toolhost.py."""
