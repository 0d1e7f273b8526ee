"""The articles' datasets, or stand-ins of the same shape."""
