"""The program that runs one tool, as three processes: host, init and main; see toolhost.py."""
