"""The program that runs one tool call, as three processes: host, init and main; see toolhost.py."""
