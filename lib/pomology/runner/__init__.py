"""Select, order and execute the notebooks of a run."""
