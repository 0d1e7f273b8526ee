"""Compare a GPU's training step with the CPU, operator by operator: `proof.prove`."""
