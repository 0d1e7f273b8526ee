"""Results: a record per case, a journal per notebook, a folder per run."""
