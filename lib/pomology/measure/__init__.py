"""Time steps and calls, and say how sure the number is."""
