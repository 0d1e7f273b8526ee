"""The same cases in PyTorch and MLX side by side: their times as ratios."""
