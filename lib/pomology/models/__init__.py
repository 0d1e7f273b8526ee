"""What is timed and shared: models, their cost on paper, parity between frameworks."""
