"""Compare the same cases in PyTorch and MLX: their times and ratios."""
