"""A company's own rules: who calls, and what they may do, decided by a class that the settings name."""
