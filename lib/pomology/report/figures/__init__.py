"""One figure per kind of result."""
