"""What is timed and shared: models, their cost on paper, and the verification of a GPU's steps."""
