"""What this computer is, and what it did meanwhile."""
