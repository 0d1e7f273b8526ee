"""A record per case, a journal per notebook, a folder per run."""
