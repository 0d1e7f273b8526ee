"""Checks of the instrument: of its clock, its counters, and of what a device computes."""
