"""Tools that this program runs for an agent: functions as declarations, calls as arguments, values as results."""
