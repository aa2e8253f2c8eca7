"""The messages (frames) between a tool host and the server; see toolhost.py."""

PROGRAM, PYTHON = b"f", b"p"
KILL, SIGNAL = b"K", b"N"
HOST, INIT, STARTED, FAILED, OUTPUT, END, CLEARED = b"H", b"I", b"S", b"X", b"O", b"E", b"C"

WALL, PROCESSES, MEMORY, LEASE = 1, 2, 3, 4
"""The numbers of the limits that an END frame can report; 0 means that no limit ended the program."""

CHUNK = 1 << 16
"""Maximum bytes of output that are read from the program at once; the largest frame is one byte longer."""
