"""Tables and figures of a run's cases that one notebook, or the summary of all, shows."""
