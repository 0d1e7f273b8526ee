"""A training step on a GPU against the CPU, operator by operator: `proof.prove`, in a notebook."""
